//! The row-parallel linear layer whose result stays sharded by rows: x · Wᵀ, reduce-scattered over the ranks.
//!
//! Every plan has the buffers `a` (x, this rank's columns), `b` (W, this rank's columns of the weight, which
//! is stored N × K) and `c` (its rows of the result). In a world of one it is one GEMM.

pub mod fused;
pub mod pipeline;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[pipeline::ALGORITHM, fused::ALGORITHM];
