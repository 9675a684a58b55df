//! The column-parallel linear layer.

use super::linear::Linear;
use super::{Choice, Layers, Matrix, Options, Result, Trial};
use crate::execute::{DeviceSlice, ExecuteBackend, Operands};
use crate::operation::Operation;
use crate::plan::Problem;
use warpweave_symm_mem::agree;

/// What each rank has of x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// All rows, M × K. The layer does not communicate.
    Replicated,
    /// Its [shard](crate::plan::shard) of the rows: sequence parallelism. The layer gathers them while it
    /// multiplies.
    SequenceSharded,
}

/// y = x · Wᵀ + bias, where each rank has its rows of W, and gets its columns of y.
///
/// W is `n` × `k` as safetensors stores weights, `n` being this rank's and the same on all ranks; the bias
/// has `n` elements, y is m × `n`. Everything is row-major without gaps, of the layer's element type; with
/// e4m3, bias and y are bf16.
///
/// With [SwiGLU](Problem::with_activation) y is m × `n` / 2: rows of W, and elements of the bias,
/// [alternate](crate::plan::Activation::SwiGlu) between eight of the gate and eight of up.
///
/// A layer without a bias adds zeros: a sum of −0 becomes 0.
pub struct ColumnParallelLinear<B: ExecuteBackend>(Linear<B>);

impl<B: ExecuteBackend> ColumnParallelLinear<B> {
    /// The layer for `shape.m` rows at most, over all ranks. Collective: all ranks make the same layer, and
    /// an error on one is one on all.
    ///
    /// # Errors
    /// The ranks disagree, no schedule runs here, there is no batch-invariant GEMM; what the preparation of
    /// schedules reports.
    pub fn new(
        layers: &Layers<B>,
        shape: &Problem,
        input: Input,
        options: &Options,
    ) -> Result<Self> {
        let (what, alone) = match input {
            Input::Replicated => ("column-parallel linear", true),
            Input::SequenceSharded => ("sequence-sharded column-parallel linear", false),
        };
        let what = (what, Operation::ColumnParallelLinear);
        let mut linear = Linear::new(layers, what, shape, options, alone)?;
        if !options.bias {
            let zeros = layers.zeros(shape.n * shape.output().size());
            let exchange = layers.executor().exchange().as_ref();
            linear.zeros = Some(agree(exchange, "zeros of a layer", zeros)?);
        }
        Ok(ColumnParallelLinear(linear))
    }

    /// Enqueues y = x · `weight`ᵀ + `bias` for `m` rows on `stream`.
    ///
    /// x has `m` rows, or this rank's shard of them. Nothing is exchanged, allocated on the device or waited
    /// for, so the call can be captured in a graph. All ranks make the same calls in the same order.
    ///
    /// # Errors
    /// `m` is out of range; a bias or scales that are not as the layer was made; an operand that is too small
    /// or overlaps y; [`ExecuteError::Stopped`](crate::execute::ExecuteError::Stopped) after a fault.
    pub fn forward<'a>(
        &self,
        stream: &B::Stream,
        x: impl Into<Matrix<'a>>,
        weight: impl Into<Matrix<'a>>,
        bias: Option<DeviceSlice<'a>>,
        y: DeviceSlice<'a>,
        m: usize,
    ) -> Result<()> {
        let zeros = self.0.zeros.as_deref().map(DeviceSlice::of);
        let bias = self.0.bias(bias)?.or(zeros);
        let operands = Operands {
            bias,
            ..self.0.operands(x, weight, y)?
        };
        self.0.run(stream, &operands, m)
    }

    fn linear(&self) -> &Linear<B> {
        &self.0
    }

    /// Measures what could compute the layer, in each range of M, with these operands, which are as large as
    /// the largest M takes; chooses the fastest, and keeps the times for later jobs on this machine. y is
    /// overwritten. Collective: the slowest rank counts.
    ///
    /// Graphs that were captured before stay good: they launch what was chosen then, which is kept.
    ///
    /// # Errors
    /// As [`ColumnParallelLinear::forward`] and [`ColumnParallelLinear::new`]; the layer is then as it was.
    pub fn tune<'a>(
        &mut self,
        stream: &B::Stream,
        x: impl Into<Matrix<'a>>,
        weight: impl Into<Matrix<'a>>,
        bias: Option<DeviceSlice<'a>>,
        y: DeviceSlice<'a>,
    ) -> Result<Vec<Trial>> {
        let zeros = self.0.zeros.clone();
        let bias = self.0.bias(bias)?.or(zeros.as_deref().map(DeviceSlice::of));
        let operands = Operands {
            bias,
            ..self.0.operands(x, weight, y)?
        };
        self.0.tune(stream, &operands)
    }
}

super::linear_methods!(ColumnParallelLinear);
