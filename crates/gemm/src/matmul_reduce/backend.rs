//! Backends with GEMM + reduction.

use std::fmt::Debug;

use super::{MatmulReduce, ReduceOperands};
use crate::{Error, GemmBackend};

/// A backend with [`MatmulReduce`].
///
/// A wait that misses the pad's deadline records a fault in the pad; the launch runs to its end, and its
/// results are invalid. [`SignalPad::check`](warpweave_symm_mem::SignalPad::check) reports the fault, and
/// [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable again.
pub trait GemmReduceBackend: GemmBackend {
    /// A GEMM ready to be launched.
    type PreparedReduce: Debug + Send + Sync;

    /// Prepares a GEMM: checks it, chooses a kernel and stores the order of its groups on the device, in
    /// memory that `handle` has. Knows no operands. Not collective; the ranks' kernels may differ. May be
    /// called while another stream is captured.
    ///
    /// # Errors
    /// - [`Error::InvalidProblem`] for a descriptor that contradicts itself.
    /// - On a GPU [`Error::Unsupported`], [`Error::Device`] and [`Error::MissingFeature`]: it needs compute
    ///   capability 9.0 and the feature `nvcc`, eight ranks at most, groups of a multiple of 128 rows (in one
    ///   shot there are none), and what [`sm90::check_problem`](crate::sm90::check_problem) says. By multimem
    ///   also [`Error::Memory`], where the device has no multicast or the guard does not allow it, with the
    ///   reason.
    /// - What the backend reports.
    fn prepare_reduce(
        &self,
        handle: &Self::GemmHandle,
        gemm: &MatmulReduce,
    ) -> Result<Self::PreparedReduce, Error>;

    /// Enqueues the GEMM on `stream`. Waits for nothing on the host, allocates nothing on the device, and may
    /// be captured in a graph, which keeps these operands.
    ///
    /// Operands may differ between the launches of one prepared GEMM. On a GPU the tensor maps of the last
    /// 256 different ones are kept; others are encoded.
    ///
    /// On a GPU the blocks wait for those of the other ranks: where something else has their SMs for longer
    /// than the pad's deadline, that is a fault.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`] for a pad or a number of addresses that does not fit the GEMM;
    /// [`Error::Operand`] for a missing or misaligned address; those of launching.
    ///
    /// # Safety
    /// - `a` and `b` hold the problem's matrices, `bias` and `scales` its elements if it has them, and C the
    ///   rows of this rank or all of them, as `local_c` does if there is one. Each staging and `pulled` hold
    ///   as many rows as the largest shard for each of the other ranks; in one shot each staging holds all
    ///   rows for each rank, twice, and by multimem all rows, at the multicast addresses too. All are mapped
    ///   until the launches of all ranks have ended, and what is written overlaps nothing else.
    /// - The pad lives until then. Nothing signals or waits in the GEMM's slots but GEMMs of this kind with
    ///   the same `done`, whose counter holds the epochs of all of them. Every rank launches a GEMM with the
    ///   same shards, groups and slots, as often as this one and in the same order with the others.
    /// - No unordered work writes `a`, B, the bias or scales, or touches this rank's C, `local_c`, staging or
    ///   `pulled`. Others read staging, and C where everyone gets the result, or by multimem write C, only
    ///   until this rank's launch has ended; after a fault until the pad has recovered.
    /// - In one shot others write staging from the start of their launches. Everything that uses `ready` or
    ///   `done` is then in one shot and uses both, and a staging belongs to one such pair and to GEMMs with
    ///   the same `staging_stride`: the flags decide which of the two a call takes.
    /// - Launches of one prepared GEMM are ordered among each other, whatever their operands: they share its
    ///   counters. It lives until they have ended, those of graphs too.
    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedReduce,
        operands: &ReduceOperands,
    ) -> Result<(), Error>;
}
