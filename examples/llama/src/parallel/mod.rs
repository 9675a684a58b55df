//! What a transformer asks of tensor parallelism, and who does it.

#[cfg(feature = "cuda")]
pub mod nccl;
pub mod operand;
pub mod plain;
pub mod warpweave;

use candle_core::Tensor;

pub use plain::Plain;
pub use warpweave::{Batches, Silent, Warpweave};

use crate::error::Result;
use crate::fused;

/// An RMSNorm.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// `[hidden]`.
    pub weight: &'a Tensor,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// The linear layers and norms of a transformer over ranks. Matrices are row-major; weights are `[out, in]`,
/// as safetensors stores them. All ranks make the same calls with the same number of rows.
///
/// From a row-parallel layer to the column-parallel one after it, ranks have all rows, or each its
/// [shard](warpweave_overlap::plan::shard) of them (sequence parallelism): as the implementation likes.
///
/// # Errors
/// A rank that did not come in time, by its number; errors of the device.
pub trait Parallel: std::fmt::Debug {
    /// Number of ranks.
    fn world(&self) -> usize;

    /// x · weightᵀ + bias of all `rows`, where each rank has its rows of the weight, and gets its columns. x
    /// has all rows, or this rank's shard of them.
    fn column(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        rows: usize,
    ) -> Result<Tensor>;

    /// silu(x · gateᵀ) · (x · upᵀ) of all `rows`, of which each rank gets its columns. Rows of `gate_up`
    /// alternate between eight of the gate and eight of up. x is as in [`Parallel::column`].
    fn swiglu(&self, x: &Tensor, gate_up: &Tensor, rows: usize) -> Result<Tensor> {
        Ok(fused::swiglu(&self.column(x, gate_up, None, rows)?)?)
    }

    /// r = residual + Σ x · weightᵀ over the ranks, each of which has its columns of x and of the weight; and
    /// the norm of r. x has all rows, the residual and both results all, or this rank's shard. The same bits
    /// on all ranks.
    fn row_add_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)>;

    /// The norm of x, which all ranks have.
    fn norm(&self, x: &Tensor, norm: &Norm<'_>) -> Result<Tensor>;

    /// All `rows` of x, of which this rank has all or its shard.
    fn all_rows(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        debug_assert_eq!(x.dims().first(), Some(&rows));
        Ok(x.clone())
    }

    /// The rows `wanted` of x, by their numbers; of its `rows` this rank has all or its shard.
    fn select(&self, x: &Tensor, rows: usize, wanted: &[u32]) -> Result<Tensor> {
        debug_assert_eq!(x.dims().first(), Some(&rows));
        Ok(x.index_select(&Tensor::new(wanted, x.device())?, 0)?)
    }

    /// All columns, of which each rank has its part, by rank.
    fn all_gather(&self, columns: &Tensor) -> Result<Tensor>;

    /// Waits until the work so far has ended, and reports what went wrong in it.
    fn finish(&self) -> Result<()>;

    /// What `step` enqueues as a graph, where candle's work can be captured. It has run before.
    ///
    /// # Safety
    /// What `step` reads and writes outlives the launches.
    unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        let _ = step;
        Ok(None)
    }
}

/// Enqueues what was captured.
pub struct Launch(pub Box<dyn Fn() -> Result<()>>);

impl Launch {
    /// Does it once more. All ranks make the same.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn again(&self) -> Result<()> {
        (self.0)()
    }
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a graph")
    }
}
