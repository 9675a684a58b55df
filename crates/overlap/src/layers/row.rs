//! The row-parallel linear layer.

use super::linear::Linear;
use super::{Choice, LayerError, Layers, Matrix, Options, Result, Trial};
use crate::execute::{DeviceSlice, ExecuteBackend, ExecuteError};
use crate::operation::Operation;
use crate::plan::Problem;
use warpweave_kernels::{LocalReduce, Strided};

/// What each rank gets of y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// All rows: an all-reduce.
    Reduced,
    /// Its [shard](crate::plan::shard) of the rows: a reduce-scatter, for sequence parallelism.
    Scattered,
}

/// y = Σ xᵣ · Wᵣᵀ + bias over the ranks r, where each rank has its columns of x and of W.
///
/// W is `n` × K as safetensors stores weights; a rank has its [shard](crate::plan::shard) of the `k` columns
/// of all ranks, x m × as many. The bias has `n` elements and is the same on all ranks. Everything is
/// row-major without gaps, of the layer's element type; with e4m3, bias and y are bf16.
///
/// The bias is added once, to the reduced and rounded y, by the rank that has the row: so every schedule
/// gives the same bits.
pub struct RowParallelLinear<B: ExecuteBackend> {
    linear: Linear<B>,
    output: Output,
}

impl<B: ExecuteBackend> RowParallelLinear<B> {
    /// The layer for `shape.m` rows at most; `shape.k` is the K of all ranks. Collective: all ranks make the
    /// same layer, and an error on one is one on all.
    ///
    /// # Errors
    /// The ranks disagree, no schedule runs here, there is no batch-invariant GEMM; what the preparation of
    /// schedules reports.
    pub fn new(
        layers: &Layers<B>,
        shape: &Problem,
        output: Output,
        options: &Options,
    ) -> Result<Self> {
        let what = match output {
            Output::Reduced => ("row-parallel linear", Operation::RowParallelLinear),
            Output::Scattered => (
                "scattered row-parallel linear",
                Operation::LinearReduceScatter,
            ),
        };
        let linear = Linear::new(layers, what, shape, options, false)?;
        Ok(RowParallelLinear { linear, output })
    }

    /// Enqueues y = Σ xᵣ · `weight`ᵣᵀ + `bias` for `m` rows on `stream`.
    ///
    /// y has `m` rows, or this rank's shard of them. Nothing is exchanged, allocated on the device or waited
    /// for, so the call can be captured in a graph. All ranks make the same calls in the same order.
    ///
    /// # Errors
    /// `m` is out of range; a bias or scales that are not as the layer was made; an operand that is too small
    /// or overlaps y; [`ExecuteError::Stopped`] after a fault.
    pub fn forward<'a>(
        &self,
        stream: &B::Stream,
        x: impl Into<Matrix<'a>>,
        weight: impl Into<Matrix<'a>>,
        bias: Option<DeviceSlice<'a>>,
        y: DeviceSlice<'a>,
        m: usize,
    ) -> Result<()> {
        let bias = self.linear.bias(bias)?;
        let operands = self.linear.operands(x, weight, y)?;
        let add = match bias {
            Some(bias) => self.addition(bias, y, m)?,
            None => None,
        };
        self.linear.run(stream, &operands, m)?;
        if let Some(add) = add {
            let backend = self.linear.executor().backend();
            // SAFETY: y is as large as the schedule, which has accepted it, says; the bias is as long as a
            // row and apart from y. `DeviceSlice` promises that both live until the work has ended.
            unsafe {
                backend
                    .local_reduce(stream, &add)
                    .map_err(ExecuteError::from)?
            };
        }
        Ok(())
    }

    fn linear(&self) -> &Linear<B> {
        &self.linear
    }

    /// Adds the bias to every row of this rank's y; nothing where it has none.
    fn addition(
        &self,
        bias: DeviceSlice<'_>,
        y: DeviceSlice<'_>,
        m: usize,
    ) -> Result<Option<LocalReduce>> {
        let (n, dtype) = (self.linear.problem.n, self.linear.problem.output());
        let exchange = self.linear.executor().exchange();
        let (rank, world) = (exchange.rank(), exchange.world());
        let rows = match self.output {
            Output::Reduced => m,
            Output::Scattered => crate::plan::shard(m, rank, world).len(),
        };
        if rows == 0 {
            return Ok(None);
        }
        let [bias, y] = [bias, y].map(|slice| slice.own());
        let row = n * dtype.size();
        if bias.0 < y.0 + (rows * row) as u64 && y.0 < bias.0 + row as u64 {
            return Err(LayerError::Bias {
                layer: self.linear.name().to_owned(),
                why: "it overlaps y".into(),
            });
        }
        let dense = Strided {
            address: y,
            row_stride: n,
        };
        let repeated = Strided {
            address: bias,
            row_stride: 0,
        };
        let launch = LocalReduce::new(rank, &[dense, repeated], dense, (rows, n), dtype);
        Ok(Some(launch.map_err(ExecuteError::from)?))
    }

    /// Measures what could compute the layer, in each range of M, with these operands, which are as large as
    /// the largest M takes; chooses the fastest, and keeps the times for later jobs on this machine. y is
    /// overwritten. Collective: the slowest rank counts. The bias, which all schedules add alike, is left
    /// out.
    ///
    /// Graphs that were captured before stay good: they launch what was chosen then, which is kept.
    ///
    /// # Errors
    /// As [`RowParallelLinear::forward`] and [`RowParallelLinear::new`]; the layer is then as it was.
    pub fn tune<'a>(
        &mut self,
        stream: &B::Stream,
        x: impl Into<Matrix<'a>>,
        weight: impl Into<Matrix<'a>>,
        y: DeviceSlice<'a>,
    ) -> Result<Vec<Trial>> {
        self.linear
            .tune(stream, &self.linear.operands(x, weight, y)?)
    }
}

super::linear_methods!(RowParallelLinear);
