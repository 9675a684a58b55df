//! The host backend's collectives: the protocols of the device code, as one block, on the stream's thread.

mod direct;
pub(crate) mod elements;
mod group;
mod norm;
mod packet;
mod packets;
mod push_reduce;
mod tree;

#[cfg(all(test, loom))]
mod models;

use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{DType, DevicePtr, Host, Result, with_element};

use super::backend::CollectiveKernels;
use super::launch::{
    Addresses, Direct, Group, Multimem, PacketKernel, Packets, PushReduce, ScatterAllGather, Tree,
    UnevenPackets,
};
use crate::collective::norm::launch::{ReducedNorm, RowNorm, Shots};
pub(super) use group::of_other_call;

impl CollectiveKernels for Host {
    fn preload_collectives(&self) -> Result<()> {
        Ok(())
    }

    fn resident_blocks(&self) -> Result<u32> {
        // One block: the references are sequential.
        Ok(1)
    }

    fn device_identity(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    unsafe fn barrier(&self, stream: &HostStream, group: &Group) -> Result<()> {
        let group = *group;
        self.launch(stream, "collective_barrier", move || {
            // SAFETY: the caller's obligation, kept until the work has ended.
            unsafe { direct::barrier(&group) };
            Ok(())
        })
    }

    unsafe fn packets(
        &self,
        stream: &HostStream,
        kernel: PacketKernel,
        dtype: DType,
        launch: &Packets,
        _blocks: u32,
    ) -> Result<()> {
        use packets::run;
        let launch = *launch;
        // SAFETY: the caller's obligation, kept until the work has ended.
        let work =
            move || unsafe { with_element!(dtype, T => { run::<T>(kernel, &launch); Ok(()) }) };
        self.launch(stream, kernel.name(), work)
    }

    unsafe fn uneven_packets(
        &self,
        stream: &HostStream,
        launch: &UnevenPackets,
        _blocks: u32,
    ) -> Result<()> {
        let launch = *launch;
        self.launch(stream, "packet_all_to_all_uneven", move || {
            // SAFETY: the caller's obligation, kept until the work has ended.
            unsafe { packets::all_to_all_uneven(&launch) };
            Ok(())
        })
    }

    unsafe fn exchange(&self, stream: &HostStream, launch: &Direct, _blocks: u32) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { exchange(self, stream, "exchange", launch) }
    }

    unsafe fn reduce(
        &self,
        stream: &HostStream,
        dtype: DType,
        launch: &Direct,
        _blocks: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { reduce(self, stream, "reduce", dtype, launch) }
    }

    unsafe fn push_reduce(
        &self,
        stream: &HostStream,
        dtype: DType,
        launch: &PushReduce,
        _blocks: u32,
    ) -> Result<()> {
        use push_reduce::push_reduce;
        let launch = *launch;
        // SAFETY: the caller's obligation, kept until the work has ended.
        let work =
            move || unsafe { with_element!(dtype, T => { push_reduce::<T>(&launch); Ok(()) }) };
        self.launch(stream, "push_reduce", work)
    }

    unsafe fn scatter_all_gather(
        &self,
        stream: &HostStream,
        launch: &ScatterAllGather,
        _blocks: u32,
    ) -> Result<()> {
        // The result is that of the root's message to every rank.
        let (root, world) = (launch.root as usize, launch.group.pad.world as usize);
        let gives = launch.group.pad.rank as usize == root;
        let to = |rank: usize| match gives && launch.output.0[rank] != launch.input {
            true => (launch.input, launch.output.0[rank]),
            false => (DevicePtr::NULL, DevicePtr::NULL),
        };
        let moves = Direct {
            group: launch.group,
            from: Addresses::by_rank(world, |rank| to(rank).0),
            to: Addresses::by_rank(world, |rank| to(rank).1),
            bytes: launch.total,
            enter: 1,
            leave: 1,
        };
        // SAFETY: the caller's obligation.
        unsafe { exchange(self, stream, "scatter_all_gather", &moves) }
    }

    unsafe fn exchange_tma(
        &self,
        stream: &HostStream,
        launch: &Direct,
        _blocks: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { exchange(self, stream, "exchange_bulk", launch) }
    }

    unsafe fn reduce_tma(
        &self,
        stream: &HostStream,
        dtype: DType,
        launch: &Direct,
        _blocks: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { reduce(self, stream, "reduce_bulk", dtype, launch) }
    }

    unsafe fn tree(
        &self,
        stream: &HostStream,
        dtype: DType,
        launch: &Tree,
        _blocks: u32,
    ) -> Result<()> {
        use tree::all_reduce;
        let launch = *launch;
        // SAFETY: the caller's obligation, kept until the work has ended.
        let work =
            move || unsafe { with_element!(dtype, T => { all_reduce::<T>(&launch); Ok(()) }) };
        self.launch(stream, "tree_all_reduce", work)
    }

    unsafe fn reduced_norm(
        &self,
        stream: &HostStream,
        shots: Shots,
        dtype: DType,
        launch: &ReducedNorm,
        _blocks: u32,
    ) -> Result<()> {
        use norm::reduced_norm;
        let launch = *launch;
        // SAFETY: the caller's obligation, kept until the work has ended.
        let work = move || unsafe {
            with_element!(dtype, T => { reduced_norm::<T>(shots, &launch); Ok(()) })
        };
        self.launch(stream, "reduced_norm", work)
    }

    unsafe fn add_rms_norm(&self, stream: &HostStream, dtype: DType, norm: &RowNorm) -> Result<()> {
        use norm::add_rms_norm;
        let norm = *norm;
        // SAFETY: the caller's obligation, kept until the work has ended.
        let work =
            move || unsafe { with_element!(dtype, T => { add_rms_norm::<T>(&norm); Ok(()) }) };
        self.launch(stream, "add_rms_norm", work)
    }

    unsafe fn multimem_spread(
        &self,
        stream: &HostStream,
        launch: &Multimem,
        _blocks: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { exchange(self, stream, "multimem_spread", &launch.direct) }
    }

    unsafe fn multimem_reduce(
        &self,
        stream: &HostStream,
        dtype: DType,
        launch: &Multimem,
        _blocks: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { reduce(self, stream, "multimem_reduce", dtype, &launch.direct) }
    }
}

/// # Safety
/// As for [`CollectiveKernels::exchange`].
unsafe fn exchange(
    device: &Host,
    stream: &HostStream,
    name: &'static str,
    launch: &Direct,
) -> Result<()> {
    let launch = *launch;
    device.launch(stream, name, move || {
        // SAFETY: the caller's obligation, kept until the work has ended.
        unsafe { direct::exchange(&launch) };
        Ok(())
    })
}

/// # Safety
/// As for [`CollectiveKernels::reduce`].
unsafe fn reduce(
    device: &Host,
    stream: &HostStream,
    name: &'static str,
    dtype: DType,
    launch: &Direct,
) -> Result<()> {
    use direct::reduce;
    let launch = *launch;
    // SAFETY: the caller's obligation, kept until the work has ended.
    let work = move || unsafe { with_element!(dtype, T => { reduce::<T>(&launch); Ok(()) }) };
    device.launch(stream, name, work)
}
