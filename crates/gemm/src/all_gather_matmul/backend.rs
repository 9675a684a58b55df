//! Backends with the all-gather GEMM.

use std::fmt::Debug;

use super::{AllGatherMatmul, AllGatherOperands};
use crate::{Error, GemmBackend};

/// A backend with [`AllGatherMatmul`].
///
/// A wait that misses the pad's deadline records a fault in the pad; the launch runs to its end, and its
/// results for the missing rows are invalid. [`SignalPad::check`](warpweave_symm_mem::SignalPad::check)
/// reports the fault, and [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable
/// again.
pub trait AllGatherGemmBackend: GemmBackend {
    /// A GEMM ready to be launched, with its tables.
    type PreparedAllGather: Debug + Send + Sync;

    /// Prepares a GEMM: checks it, chooses a kernel and stores the order of its tiles on the device, in
    /// memory that `handle` has. Knows no operands. Not collective. May be called while another stream is
    /// captured.
    ///
    /// # Errors
    /// - [`Error::InvalidProblem`] for a descriptor that contradicts itself.
    /// - On a GPU [`Error::Unsupported`], [`Error::Device`] and [`Error::MissingFeature`]: it needs compute
    ///   capability 9.0 and the feature `nvcc`, at most [`AllGatherMatmul::MAX_WORLD`] ranks, and what
    ///   [`sm90::check_problem`](crate::sm90::check_problem) asks for.
    /// - What the backend reports.
    fn prepare_all_gather(
        &self,
        handle: &Self::GemmHandle,
        gemm: &AllGatherMatmul,
    ) -> Result<Self::PreparedAllGather, Error>;

    /// The chosen configuration, for tables and logs.
    fn all_gather_algorithm(prepared: &Self::PreparedAllGather) -> String;

    /// Enqueues the GEMM on `stream`. Waits for nothing on the host, allocates nothing on the device, and may
    /// be captured in a graph, which keeps these operands.
    ///
    /// Operands may differ between the launches of one prepared GEMM. On a GPU the tensor maps of the last
    /// 256 different ones are kept; others are encoded.
    ///
    /// All blocks of a launch on a GPU must become resident while the peers' launches run: other work on the
    /// device must not depend on them.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`] for a pad or a number of addresses that does not fit the GEMM;
    /// [`Error::Operand`] for a missing or misaligned address; those of launching.
    ///
    /// # Safety
    /// - Each address of `a` holds that rank's shard (with the eager protocol only this rank's), each staging
    ///   every row of A ([`stagings`](crate::Protocol::stagings) times), `b` and `c` the problem's matrices,
    ///   `bias` its elements if it has one; every row of A has `lda` elements, the last one too. All are
    ///   mapped until the launches of all ranks have ended, and none overlaps another.
    /// - The pad lives until then. All ranks launch the same GEMM equally often, in the same order with
    ///   others that use its slots, and nothing else uses them; with pushes, each owner of any rows signals
    ///   `ready` once a call.
    /// - With the eager protocol, whatever uses the slots from `ready` on is eager and has the same `ready`,
    ///   because one counter holds their epochs; and the stagings belong to GEMMs with the same
    ///   `staging_stride`.
    /// - No unordered work writes this rank's shard, B or the bias or touches C or staging, except the
    ///   owners' pushes and the peers' eager launches.
    /// - Launches of one prepared GEMM are ordered among each other, whatever their operands: they share its
    ///   counters. It lives until they have ended, those of graphs too.
    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedAllGather,
        operands: &AllGatherOperands,
    ) -> Result<(), Error>;
}
