//! Backends with a GEMM that waits per chunk.

use std::fmt::Debug;

use super::{ChunkedMatmul, ChunkedOperands};
use crate::{Error, GemmBackend};

/// A backend with [`ChunkedMatmul`].
///
/// A wait that misses the pad's deadline records a fault in the pad; the launch runs to its end, and its
/// results for the missing rows are invalid. [`SignalPad::check`](warpweave_symm_mem::SignalPad::check)
/// reports the fault, and [`SignalPad::recover`](warpweave_symm_mem::SignalPad::recover) makes the pad usable
/// again.
pub trait ChunkedGemmBackend: GemmBackend {
    /// A GEMM ready to be launched, with its tables.
    type PreparedChunked: Debug + Send + Sync;

    /// Prepares a GEMM: checks it, chooses a kernel, and stores its tables on the device, in memory that
    /// `handle` has. Knows no operands. Not collective. May be called while another stream is captured.
    ///
    /// # Errors
    /// - [`Error::InvalidProblem`] for a descriptor that contradicts itself.
    /// - On a GPU [`Error::Unsupported`], [`Error::Device`] and [`Error::MissingFeature`]: it needs compute
    ///   capability 9.0 and the feature `cutlass`, with its requirements of shapes.
    /// - What the backend reports.
    fn prepare_chunked(
        &self,
        handle: &Self::GemmHandle,
        gemm: &ChunkedMatmul,
    ) -> Result<Self::PreparedChunked, Error>;

    /// Enqueues the GEMM on `stream`. Waits for nothing on the host, allocates nothing on the device, and may
    /// be captured in a graph, which keeps these operands.
    ///
    /// Operands may differ between the launches of one prepared GEMM. On a GPU the tensor maps of the last
    /// 256 different ones are kept; others are encoded.
    ///
    /// On a GPU the launch leaves two SMs to others: a peer waits for a signal of this rank, which is a
    /// kernel, while this rank's tiles wait for that peer.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`] for a pad that does not fit the GEMM; [`Error::Operand`] for a missing or
    /// misaligned address; those of launching.
    ///
    /// # Safety
    /// - `a` holds the rows `own`, `staging` every row of A, `b` and `c` the problem's matrices; all are
    ///   mapped until the launch has ended, and C overlaps none of them.
    /// - The pad lives until then. Every rank of `arrivals` signals as often a call as it has entries there,
    ///   each time after the arrival of those rows; no other work waits in the slot.
    /// - No unordered work writes `a` or B, touches C, or reads or writes the rows `own` of staging. Rows
    ///   that have arrived stay as they are until the launch has ended.
    /// - Launches of one prepared GEMM are ordered among each other, whatever their operands. It lives until
    ///   they have ended, those of graphs too.
    unsafe fn chunked_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedChunked,
        operands: &ChunkedOperands,
    ) -> Result<(), Error>;
}
