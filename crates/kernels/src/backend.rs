//! Backends that can launch this crate's kernels.

use warpweave_symm_mem::Backend;

use crate::descriptor::{GatherMatmul, NaiveRemoteRead};
use crate::error::Result;
use crate::local_reduce::LocalReduce;

/// A backend with the kernels of this crate.
///
/// Launches are asynchronous. If a wait inside a kernel misses the pad's deadline, it records a fault in the
/// pad; the kernel skips that peer's rows and ends.
/// [`SignalPad::check`](warpweave_symm_mem::SignalPad::check) reports the fault, and
/// [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable again.
///
/// If a launch fails on one rank, its peers wait until their deadline. Whether a launch is refused depends on
/// the descriptor and the device, so pass consistent descriptors on all ranks.
///
/// # Ranks that share a context
/// Ranks that are threads of one process on one GPU share its context. Some driver calls wait for all work of
/// the context, including other ranks' work: loading a kernel, instantiating a graph, allocating and freeing
/// memory. If a rank is in such a call while a peer's kernel waits for that rank's launch, the peer waits
/// until its deadline. So:
/// - every rank calls [`KernelBackend::preload`], followed by a barrier, before any rank launches;
/// - a barrier separates such calls from launches, in either order.
///
/// Limit the grids by `max_blocks` so that they fit on the device together, and give each rank a hardware
/// queue: `CUDA_DEVICE_MAX_CONNECTIONS=32` in the environment. Ranks that are processes, or have a GPU each,
/// need none of this.
pub trait KernelBackend: Backend {
    /// Loads all kernels of this crate that the device can run, so that no launch has to. The others are an
    /// error only when they are launched. Does nothing on the host.
    ///
    /// # Errors
    /// Errors of the driver.
    fn preload(&self) -> Result<()> {
        Ok(())
    }

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// [`Error::InvalidLaunch`](crate::Error::InvalidLaunch) for an inconsistent descriptor; errors for
    /// missing features of the device or the build.
    ///
    /// # Safety
    /// - Until the work has ended, every address is valid on this device for the matrix in the descriptor,
    ///   and every table has `world` addresses; a peer's entry in `a_peers` is valid for that peer's shard.
    /// - `launch.pad` is the view of a live pad. Its two slots are used, on all ranks, only by launches of
    ///   this kernel. All ranks launch with the same sizes, element type and slots, the same number of times.
    /// - Until the launch has ended, nothing unordered writes this rank's A or B or accesses C.
    /// - C overlaps neither A nor B of any rank.
    unsafe fn naive_remote_read(
        &self,
        stream: &Self::Stream,
        launch: &NaiveRemoteRead,
    ) -> Result<()>;

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// As [`KernelBackend::naive_remote_read`]. [`GatherMode::Multimem`](crate::GatherMode::Multimem) needs
    /// compute capability 9.0.
    ///
    /// # Safety
    /// - As [`KernelBackend::naive_remote_read`], for `a`, `staging` and their tables too.
    /// - With [`GatherMode::Multimem`](crate::GatherMode::Multimem), `address` is the multicast address of
    ///   the staging of all ranks, and only these launches write staging. If `signal_free` is off, work
    ///   ordered after the last read of staging signals `free` to all peers, once per launch.
    unsafe fn gather_matmul(&self, stream: &Self::Stream, launch: &GatherMatmul) -> Result<()>;

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// As [`KernelBackend::naive_remote_read`].
    ///
    /// # Safety
    /// - Every box is mapped here until the work has ended. The destination is one of the partials or
    ///   overlaps none.
    /// - No unordered work of any rank writes a partial or accesses the destination.
    unsafe fn local_reduce(&self, stream: &Self::Stream, launch: &LocalReduce) -> Result<()>;
}
