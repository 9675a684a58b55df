//! Matmul + reduce-scatter: A\[M,K\] · B\[K,N\] with K sharded; each rank gets its rows, by
//! [`shard`](crate::plan::shard), of the sum of all partial GEMMs.
//!
//! Every plan has the buffers `a` (this rank's columns), `b` (its rows) and `c` (its rows of the result). In
//! a world of one the pipelines and the fused kernel are one GEMM.

pub mod fused;
pub mod pipeline;
pub mod ring;
pub mod then_collective;

use super::Algorithm;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    then_collective::ALGORITHM,
    pipeline::ALGORITHM,
    ring::ALGORITHM,
    fused::ALGORITHM,
];
