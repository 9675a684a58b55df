//! Backends with GEMM + reduction.

use std::fmt::Debug;

use warpweave_symm_mem::Backend;

use super::MatmulReduce;
use crate::Error;

/// A backend with [`MatmulReduce`].
///
/// A wait that misses the pad's deadline records a fault in the pad; the launch runs to its end, and its
/// results are invalid. [`SignalPad::check`](warpweave_symm_mem::SignalPad::check) reports the fault, and
/// [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable again.
pub trait GemmReduceBackend: Backend {
    /// A GEMM ready to be launched.
    type PreparedReduce: Debug + Send + Sync;

    /// Prepares a GEMM: checks it, chooses a kernel, encodes its tensor maps and stores the order of its
    /// groups on the device. Not collective; the ranks' kernels may differ.
    ///
    /// # Errors
    /// - [`Error::InvalidProblem`] for a descriptor that contradicts itself.
    /// - On a GPU [`Error::Unsupported`], [`Error::Device`] and [`Error::MissingFeature`]: it needs compute
    ///   capability 9.0 and the feature `nvcc`, eight ranks at most, groups of a multiple of 128 rows (in one
    ///   shot there are none), and what [`sm90::check_problem`](crate::sm90::check_problem) says;
    ///   [`Error::Operand`] for a misaligned address.
    /// - What the backend reports.
    fn prepare_reduce(&self, gemm: &MatmulReduce) -> Result<Self::PreparedReduce, Error>;

    /// Enqueues the GEMM on `stream`. Waits for nothing on the host, and may be captured in a graph.
    ///
    /// On a GPU the blocks wait for those of the other ranks: where something else has their SMs for longer
    /// than the pad's deadline, that is a fault.
    ///
    /// # Safety
    /// - `a` and `b` hold the problem's matrices, `bias` its elements if it has one, and C the rows of this
    ///   rank or all of them. Each staging and `pulled` hold as many rows as the largest shard for each of
    ///   the other ranks; in one shot each staging holds all rows twice for each rank. All are mapped until
    ///   the launches of all ranks have ended, and what is written overlaps nothing else.
    /// - The pad lives until then. Nothing else signals or waits in the GEMM's slots. Every rank launches a
    ///   GEMM with the same shards, groups and slots, as often as this one.
    /// - No unordered work writes `a`, B or the bias, or touches this rank's C, staging or `pulled`. Others
    ///   read staging, and C where everyone gets the result, only until this rank's launch has ended.
    /// - In one shot others write staging from the start of their launches. Everything that uses `ready` or
    ///   `done` is then in one shot and uses both, and a staging belongs to one such pair and to GEMMs with
    ///   the same m and `ldc`: the flags decide which of its two halves a call takes.
    /// - Launches of one prepared GEMM are ordered among each other.
    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedReduce,
    ) -> Result<(), Error>;
}
