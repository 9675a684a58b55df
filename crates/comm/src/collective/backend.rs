//! The kernel launches of collectives, for each backend.

use warpweave_symm_mem::{Backend, DType, DevicePtr, Result};

use super::launch::{
    Direct, Group, Multimem, PacketKernel, Packets, PushReduce, ScatterAllGather, UnevenPackets,
};
use super::norm::launch::{ReducedNorm, RowNorm};

/// One of several copies.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    /// Where to.
    pub dst: DevicePtr,
    /// Where from.
    pub src: DevicePtr,
    /// How much, in bytes.
    pub bytes: usize,
}

/// A kernel of collectives with its parameters. The host backend has a reference of each.
#[derive(Clone, Copy, Debug)]
pub enum Kernel<'a> {
    /// A barrier of all ranks, of one block.
    Barrier(&'a Group),
    /// A collective by packets. The type matters only where elements are reduced.
    Packets(PacketKernel, DType, &'a Packets),
    /// An all-to-all by packets, of chunks of different lengths, whose sources and destinations do not
    /// overlap.
    UnevenPackets(&'a UnevenPackets),
    /// An all-reduce of data without flags. `aligned`, capacity and areas are of vectors of 16 bytes.
    Sentinel(DType, &'a Packets),
    /// Copies the bytes of each source to the destination of the same rank.
    Exchange(&'a Direct),
    /// Reduces all sources in f32, in the order of ranks, and stores the result to each destination. Sources
    /// are given for every rank.
    Reduce(DType, &'a Direct),
    /// Pushes a chunk to each peer's staging memory, and reduces what the peers push here, slice by slice.
    PushReduce(DType, &'a PushReduce),
    /// Scatters the root's message over the other ranks, each of which forwards its chunk to the rest.
    ScatterAllGather(&'a ScatterAllGather),
    /// As `Exchange`, by TMA bulk copies; by the SMs on a rank whose addresses or sizes are not multiples of
    /// 16. [`Error::Unavailable`](warpweave_symm_mem::Error::Unavailable) where there are none.
    ExchangeTma(&'a Direct),
    /// As `Reduce`, by bulk copies to and from shared memory; by loads and stores on a rank whose addresses
    /// are not multiples of 16. As `ExchangeTma` where there are none.
    ReduceTma(DType, &'a Direct),
    /// Reduces rows by packets, which fit into their sections, adds them to a residual and normalizes them.
    /// The grid is at most the one given.
    ReducedNorm(DType, &'a ReducedNorm),
    /// The same after an all-reduce by sentinels.
    SentinelNorm(DType, &'a ReducedNorm),
    /// Adds rows to a residual and normalizes them. Not collective, and with a grid of its own.
    AddRmsNorm(DType, &'a RowNorm),
    /// Stores this rank's data to the memory of all ranks through a multicast address; what is not aligned to
    /// 16 bytes as `Exchange` does. Multicast addresses are those of live multicast objects over the same
    /// memory.
    MultimemSpread(&'a Multimem),
    /// Loads the reduction over all ranks through a multicast address and stores it, through another or to
    /// this rank; what is not aligned to 16 bytes as `Reduce` does. Addresses as of `MultimemSpread`.
    MultimemReduce(DType, &'a Multimem),
}

/// The kernels of collectives.
pub trait CollectiveKernels: Backend {
    /// Loads every kernel before any of them waits: loading may need an idle device. Kernels that this build
    /// or device lacks are skipped; their launches return the error.
    ///
    /// # Errors
    /// The driver's.
    fn preload_collectives(&self) -> Result<()>;

    /// Blocks that are resident at once, for any kernel.
    fn resident_blocks(&self) -> Result<u32>;

    /// What tells the device from others, also of other processes; `None` on all ranks where those that share
    /// one do not take blocks from each other.
    ///
    /// # Errors
    /// What the driver reports.
    fn device_identity(&self) -> Result<Option<Vec<u8>>>;

    /// Enqueues a kernel on `stream`, in a grid of `blocks`.
    ///
    /// # Errors
    /// [`Error::Unavailable`](warpweave_symm_mem::Error::Unavailable) for an element type that the kernel
    /// does not know, or that this build or device lacks it; what the backend reports.
    ///
    /// # Safety
    /// - The group is that of a live [`Collectives`](super::Collectives); all ranks make the same launches in
    ///   the same order, with the same `blocks`, on streams whose work is ordered.
    /// - Every address is mapped until the work has ended, for as many bytes as the launch touches, and
    ///   aligned to an element; no unordered work conflicts.
    /// - What the [`Kernel`] says.
    unsafe fn launch_collective(
        &self,
        stream: &Self::Stream,
        launch: Kernel<'_>,
        blocks: u32,
    ) -> Result<()>;

    /// Enqueues [`Kernel::Barrier`].
    ///
    /// # Errors
    /// As for [`launch_collective`](CollectiveKernels::launch_collective).
    ///
    /// # Safety
    /// As for [`launch_collective`](CollectiveKernels::launch_collective).
    unsafe fn barrier(&self, stream: &Self::Stream, group: &Group) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_collective(stream, Kernel::Barrier(group), 1) }
    }

    /// Copies from or to peers by copy engine, in any order. None is made once the host knows that a wait of
    /// this rank has failed: see [`Backend::push_by_engine`].
    ///
    /// # Safety
    /// As for [`launch_collective`](CollectiveKernels::launch_collective); they do not overlap.
    unsafe fn copies(&self, stream: &Self::Stream, moves: &[Move]) -> Result<()> {
        for copy in moves {
            // SAFETY: the caller's obligation.
            unsafe { self.push_by_engine(stream, copy.dst, copy.src, copy.bytes)? };
        }
        Ok(())
    }

    /// As [`copies`](CollectiveKernels::copies), as one batch of the driver where it supports batches and
    /// `stream` is not being captured.
    ///
    /// # Safety
    /// As for [`copies`](CollectiveKernels::copies).
    unsafe fn batched_copies(&self, stream: &Self::Stream, moves: &[Move]) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.copies(stream, moves) }
    }
}
