//! Matmul + all-reduce: A\[M,K\] · B\[K,N\] with K sharded; each rank gets the sum of all partial GEMMs.
//!
//! Every plan has the buffers `a` (this rank's columns), `b` (its rows) and `c` (all of the result). In a
//! world of one the pipeline and the fused kernel are one GEMM.

pub mod fused;
pub mod pipeline;
pub mod then_collective;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    then_collective::ALGORITHM,
    pipeline::ALGORITHM,
    fused::ALGORITHM,
];
