//! candle alone, on one rank: what the others are compared with.

use candle_core::Tensor;
use candle_nn::ops::rms_norm;

use super::{Norm, Parallel};
use crate::error::Result;

/// One rank, in candle's own operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Parallel for Plain {
    fn world(&self) -> usize {
        1
    }

    fn column(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        _: usize,
    ) -> Result<Tensor> {
        let y = x.matmul(&weight.t()?)?;
        Ok(match bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }

    fn row_add_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let residual = (residual + x.matmul(&weight.t()?)?)?;
        let normalized = self.norm(&residual, norm)?;
        Ok((residual, normalized))
    }

    fn norm(&self, x: &Tensor, norm: &Norm<'_>) -> Result<Tensor> {
        Ok(rms_norm(x, norm.weight, norm.epsilon)?)
    }

    fn all_gather(&self, columns: &Tensor) -> Result<Tensor> {
        Ok(columns.clone())
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
