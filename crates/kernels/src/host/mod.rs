//! The host references: the protocols of the device code, one block of rows after the other, on the stream's
//! thread.

mod gather_matmul;
mod gemm;
mod local_reduce;
mod naive_remote_read;

use warpweave_symm_mem::{DevicePtr, Host, PadView, with_element};

use crate::backend::KernelBackend;
use crate::descriptor::{GatherMatmul, NaiveRemoteRead};
use crate::error::Result;
use crate::local_reduce::LocalReduce;

impl KernelBackend for Host {
    unsafe fn naive_remote_read(
        &self,
        stream: &Self::Stream,
        launch: &NaiveRemoteRead,
    ) -> Result<()> {
        use naive_remote_read::naive_remote_read;
        launch.validate()?;
        let launch = *launch;
        // SAFETY: the obligations of the reference are those of this method, kept until the work has ended.
        let work = move || unsafe {
            with_element!(launch.dtype, T => { naive_remote_read::<T>(&launch); Ok(()) })
        };
        Ok(self.launch(stream, NaiveRemoteRead::NAME, work)?)
    }

    unsafe fn gather_matmul(&self, stream: &Self::Stream, launch: &GatherMatmul) -> Result<()> {
        use gather_matmul::gather_matmul;
        launch.validate()?;
        let launch = *launch;
        // SAFETY: the obligations of the reference are those of this method, kept until the work has ended.
        let work = move || unsafe {
            with_element!(launch.dtype, T => { gather_matmul::<T>(&launch); Ok(()) })
        };
        Ok(self.launch(stream, launch.name(), work)?)
    }

    unsafe fn local_reduce(&self, stream: &Self::Stream, launch: &LocalReduce) -> Result<()> {
        use local_reduce::local_reduce;
        launch.validate()?;
        let launch = *launch;
        // SAFETY: the obligations of the reference are those of this method, kept until the work has ended.
        let work = move || unsafe {
            with_element!(launch.dtype, T => { local_reduce::<T>(&launch); Ok(()) })
        };
        Ok(self.launch(stream, LocalReduce::NAME, work)?)
    }
}

/// The ranks in the order in which this one serves them: itself, then its successors, so that no two ranks
/// read from the same owner at the same time.
fn rotation(pad: &PadView) -> impl Iterator<Item = usize> {
    let (rank, world) = (pad.rank as usize, pad.world as usize);
    (0..world).map(move |i| (rank + i) % world)
}

/// [`rotation`] without this rank.
fn peers(pad: &PadView) -> impl Iterator<Item = usize> {
    rotation(pad).skip(1)
}

/// Entry `rank` of a table of addresses.
///
/// # Safety
/// The table has more than `rank` entries.
unsafe fn entry<T>(table: DevicePtr, rank: usize) -> *mut T {
    // SAFETY: the caller's obligation.
    DevicePtr(unsafe { *table.as_host::<u64>().add(rank) }).as_host()
}
