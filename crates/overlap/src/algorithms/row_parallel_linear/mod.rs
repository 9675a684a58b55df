//! The row-parallel linear layer: x\[t, 4h/d\] · W\[h, 4h/d\]ᵀ, all-reduced over the d ranks, with M = t, N =
//! h, K = 4h.
//!
//! Every plan has the buffers `a` (x), `b` (W, this rank's columns of the weight, which is stored N × K) and
//! `c` (all of the result).

pub mod chunked;
pub mod fused;
pub mod pipeline;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] =
    &[chunked::ALGORITHM, pipeline::ALGORITHM, fused::ALGORITHM];
