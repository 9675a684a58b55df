//! Column-parallel linear layer: C\[M,N\] = A\[M,K\] · Wᵀ + bias, A sharded by rows, the weight (stored N ×
//! K) and the bias each rank's own.
//!
//! Every plan has the buffers `a` (this rank's rows of A, in a buffer with as many rows as the rank with the
//! most), `b` (the weight), `bias` and `c`. In a world of one it is one GEMM; otherwise `staging` has room
//! for all rows of A.

mod chunk;
pub mod fused;
pub mod hierarchical;
pub mod pipeline;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    pipeline::ALGORITHM,
    fused::ALGORITHM,
    hierarchical::ALGORITHM,
];
