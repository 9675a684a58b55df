//! The kernel launches of collectives, for each backend.

use warpweave_symm_mem::{Backend, DType, DevicePtr, Result};

use super::launch::{
    Direct, Group, Multimem, PacketKernel, Packets, PushReduce, ScatterAllGather, Tree,
    UnevenPackets,
};
use super::norm::launch::{ReducedNorm, RowNorm, Shots};

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

/// The kernels of collectives. The host backend has references under the same names.
///
/// # Safety of the launches
/// - The group is that of a live [`Collectives`](super::Collectives); all ranks make the same launches in the
///   same order, with the same `blocks`, on streams whose work is ordered.
/// - Every address is mapped until the work has ended, for as many bytes as the launch touches, and aligned
///   to an element; no unordered work conflicts.
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

    /// A barrier of all ranks.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn barrier(&self, stream: &Self::Stream, group: &Group) -> Result<()>;

    /// A collective by packets. `dtype` matters only where elements are reduced.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn packets(
        &self,
        stream: &Self::Stream,
        kernel: PacketKernel,
        dtype: DType,
        launch: &Packets,
        blocks: u32,
    ) -> Result<()>;

    /// An all-to-all by packets, of chunks of different lengths.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels); sources and destinations do not overlap.
    unsafe fn uneven_packets(
        &self,
        stream: &Self::Stream,
        launch: &UnevenPackets,
        blocks: u32,
    ) -> Result<()>;

    /// Copies `bytes` from each source to the destination of the same rank.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn exchange(&self, stream: &Self::Stream, launch: &Direct, blocks: u32) -> Result<()>;

    /// Reduces all sources in f32, in the order of ranks, and stores the result to each destination. Sources
    /// are given for every rank.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn reduce(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        launch: &Direct,
        blocks: u32,
    ) -> Result<()>;

    /// Pushes a chunk to each peer's staging memory, and reduces what the peers push here, slice by slice.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn push_reduce(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        launch: &PushReduce,
        blocks: u32,
    ) -> Result<()>;

    /// Scatters the root's message over the other ranks, each of which forwards its chunk to the rest.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn scatter_all_gather(
        &self,
        stream: &Self::Stream,
        launch: &ScatterAllGather,
        blocks: u32,
    ) -> Result<()>;

    /// As [`exchange`](CollectiveKernels::exchange), by TMA bulk copies; by the SMs on a rank whose addresses
    /// or sizes are not multiples of 16.
    ///
    /// # Errors
    /// [`Error::Unavailable`](warpweave_symm_mem::Error::Unavailable) where there is none.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn exchange_tma(
        &self,
        stream: &Self::Stream,
        launch: &Direct,
        blocks: u32,
    ) -> Result<()>;

    /// As [`reduce`](CollectiveKernels::reduce), by bulk copies to and from shared memory; by loads and
    /// stores on a rank whose addresses are not multiples of 16.
    ///
    /// # Errors
    /// As [`exchange_tma`](CollectiveKernels::exchange_tma).
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn reduce_tma(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        launch: &Direct,
        blocks: u32,
    ) -> Result<()>;

    /// An all-reduce along two trees.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels).
    unsafe fn tree(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        launch: &Tree,
        blocks: u32,
    ) -> Result<()>;

    /// Reduces rows by packets, adds them to a residual and normalizes them, in up to `blocks` blocks.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels); the packets of the rows fit into their sections.
    unsafe fn reduced_norm(
        &self,
        stream: &Self::Stream,
        shots: Shots,
        dtype: DType,
        launch: &ReducedNorm,
        blocks: u32,
    ) -> Result<()>;

    /// Adds rows to a residual and normalizes them. Not collective.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels), for memory.
    unsafe fn add_rms_norm(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        norm: &RowNorm,
    ) -> Result<()>;

    /// Stores this rank's data to the memory of all ranks through a multicast address; what is not aligned to
    /// 16 bytes as [`exchange`](CollectiveKernels::exchange) does.
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels). Multicast addresses are those of live multicast objects over the
    /// same memory.
    unsafe fn multimem_spread(
        &self,
        stream: &Self::Stream,
        launch: &Multimem,
        blocks: u32,
    ) -> Result<()>;

    /// Loads the reduction over all ranks through a multicast address and stores it, through another or to
    /// this rank; what is not aligned to 16 bytes as [`reduce`](CollectiveKernels::reduce) does.
    ///
    /// # Safety
    /// As for [`multimem_spread`](CollectiveKernels::multimem_spread).
    unsafe fn multimem_reduce(
        &self,
        stream: &Self::Stream,
        dtype: DType,
        launch: &Multimem,
        blocks: u32,
    ) -> Result<()>;

    /// Copies from or to peers by copy engine, in any order. None is made once the host knows that a wait of
    /// this rank has failed: see [`Backend::push_by_engine`].
    ///
    /// # Safety
    /// See [the trait](CollectiveKernels); they do not overlap.
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
