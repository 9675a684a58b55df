//! Backends that can launch the kernels of this crate.

use warpweave_symm_mem::Backend;

use crate::descriptor::{GatherMatmul, NaiveRemoteRead};
use crate::error::Result;
use crate::local_reduce::LocalReduce;

/// A backend with the kernels of this crate.
///
/// Launches enqueue and return. A wait inside a kernel that misses the pad's deadline records a fault in the pad, the
/// kernel leaves that peer's rows out and ends; [`SignalPad::check`](warpweave_symm_mem::SignalPad::check) reports it
/// and [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable again.
///
/// A failed launch on one rank leaves its peers waiting until their deadline: refusals depend on the descriptor and the
/// device, so give all ranks descriptors that agree.
///
/// # Ranks that share a context
/// Threads of one process whose ranks are on one GPU share its context, and some driver calls wait for all work of the
/// context, that of the other ranks too: loading a kernel, instantiating a graph, allocating and freeing memory. A rank in
/// such a call while a peer's kernel waits for that rank's launch is missed until the deadline. So:
/// - every rank calls [`KernelBackend::preload`], and all meet, before any launches;
/// - all meet again between such calls and launches, in either order.
///
/// Give them grids that fit on the device together, by `max_blocks`, and a queue each: `CUDA_DEVICE_MAX_CONNECTIONS=32`
/// in the environment. Ranks that are processes, or have a GPU each, need none of this.
pub trait KernelBackend: Backend {
    /// Loads all kernels of this crate that the device can run, so that no launch has to. Those that it cannot run are
    /// an error only when they are launched. Nothing to do on the host.
    ///
    /// # Errors
    /// What the driver reports.
    fn preload(&self) -> Result<()> {
        Ok(())
    }

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// [`Error::InvalidLaunch`](crate::Error::InvalidLaunch) for a descriptor that contradicts itself; what the device
    /// or the build lacks.
    ///
    /// # Safety
    /// - Every address covers the matrix that the descriptor says, and every table `world` addresses, on this device's
    ///   address space, until the work has ended; the entry of a peer in `a_peers` covers that peer's shard.
    /// - `launch.pad` is the view of a live pad, and nothing else uses its two slots on any rank, but launches of the
    ///   same kernel. All ranks launch with the same sizes, element type and slots, the same number of times.
    /// - Nothing that is not ordered before the launch writes this rank's A or B or touches C, and nothing does so until
    ///   the launch has ended.
    /// - C overlaps neither A nor B of any rank.
    unsafe fn naive_remote_read(
        &self,
        stream: &Self::Stream,
        launch: &NaiveRemoteRead,
    ) -> Result<()>;

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// As [`KernelBackend::naive_remote_read`]. [`GatherMode::Multimem`](crate::GatherMode::Multimem) needs compute
    /// capability 9.0.
    ///
    /// # Safety
    /// - As [`KernelBackend::naive_remote_read`], for `a`, `staging` and their tables too.
    /// - With [`GatherMode::Multimem`](crate::GatherMode::Multimem) `address` is the multicast address of the staging
    ///   of all ranks, and staging is written by these launches alone. If `signal_free` is off, `free` is signalled to
    ///   all peers once after each launch, by work ordered behind the last read of staging.
    unsafe fn gather_matmul(&self, stream: &Self::Stream, launch: &GatherMatmul) -> Result<()>;

    /// Enqueues `launch` on `stream`.
    ///
    /// # Errors
    /// As [`KernelBackend::naive_remote_read`].
    ///
    /// # Safety
    /// - Every box is mapped here until the work has ended. The destination is one of the partials or overlaps none.
    /// - No unordered work, of any rank, writes a partial or touches the destination.
    unsafe fn local_reduce(&self, stream: &Self::Stream, launch: &LocalReduce) -> Result<()>;
}
