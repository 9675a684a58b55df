//! Backends with the all-gather GEMM.

use std::fmt::Debug;

use warpweave_symm_mem::Backend;

use super::AllGatherMatmul;
use crate::Error;

/// A backend with [`AllGatherMatmul`].
///
/// A wait that misses the pad's deadline records a fault in the pad; the launch runs to its end, and its
/// results for the missing rows are invalid. [`SignalPad::check`](warpweave_symm_mem::SignalPad::check)
/// reports the fault, and [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable
/// again.
pub trait AllGatherGemmBackend: Backend {
    /// A GEMM ready to be launched, with its tables.
    type PreparedAllGather: Debug + Send + Sync;

    /// Prepares a GEMM: checks it, chooses a kernel, encodes its tensor maps and stores the order of its
    /// tiles on the device. Not collective.
    ///
    /// # Errors
    /// - [`Error::InvalidProblem`] for a descriptor that contradicts itself.
    /// - On a GPU [`Error::Unsupported`], [`Error::Device`] and [`Error::MissingFeature`]: it needs compute
    ///   capability 9.0 and the feature `nvcc`, at most [`AllGatherMatmul::MAX_WORLD`] ranks, and what
    ///   [`sm90::check_problem`](crate::sm90::check_problem) asks for; [`Error::Operand`] for a misaligned
    ///   address.
    /// - What the backend reports.
    fn prepare_all_gather(&self, gemm: &AllGatherMatmul) -> Result<Self::PreparedAllGather, Error>;

    /// The chosen configuration, for tables and logs.
    fn all_gather_algorithm(prepared: &Self::PreparedAllGather) -> String;

    /// Enqueues the GEMM on `stream`. Waits for nothing on the host, and may be captured in a graph.
    ///
    /// On a GPU all blocks of the launch must become resident while the peers' launches run: other work on
    /// the device must not depend on them.
    ///
    /// # Safety
    /// - Each address of `a` holds that rank's shard (with the eager protocol only this rank's), `staging`
    ///   every row of A ([`stagings`](crate::Protocol::stagings) times), `b` and `c` the problem's matrices,
    ///   `bias` its elements if it has one; every row of A has `lda` elements, the last one too. All are
    ///   mapped until the launches of all ranks have ended, and none overlaps another.
    /// - The pad lives until then. All ranks launch the same GEMM equally often, in the same order with
    ///   others that use its slots, and nothing else uses them; with pushes, each owner of any rows signals
    ///   `ready` once a call.
    /// - With the eager protocol, whatever uses the slots from `ready` on is eager and has the same `ready`,
    ///   because one counter holds their epochs; and the stagings belong to GEMMs with the same rows and
    ///   `lda`.
    /// - No unordered work writes this rank's shard, B or the bias or touches C or staging, except the
    ///   owners' pushes and the peers' eager launches.
    /// - Launches of one prepared GEMM are ordered among each other.
    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedAllGather,
    ) -> Result<(), Error>;
}
