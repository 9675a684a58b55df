//! All-gather + matmul: C\[M,N\] = A\[M,K\] · B\[K,N\], A sharded by rows, B each rank's own.
//!
//! First the seven of nvFuser's benchmark, under its names, then the collective over symmetric memory, then
//! the pipelines, which multiply the rows that have arrived while others are in transfer. Every plan has the
//! buffers `a` (this rank's shard, in a buffer with the rows of the largest shard), `b` and `c`. All but the
//! naive one also have `staging`, with room for all rows of A. The hierarchical one has `landing` as well, or
//! instead where each rank is a node. In a world of one all but the seven are one GEMM without staging.

pub mod baseline_cuda;
pub mod baseline_nccl;
pub mod broadcast_pipeline;
pub(super) mod buffers;
pub mod direct_exchange;
pub mod fused;
pub mod hierarchical;
pub mod multimem_gather_cutlass;
pub mod multimem_gather_scalar;
pub mod naive_remote_read;
pub mod push_chunks;
pub mod push_chunks_waiting_gemm;
pub mod ring_get;
pub mod ring_put;
pub mod then_matmul;
pub mod threadload_gather_cutlass;
pub mod threadload_gather_scalar;

use super::Algorithm;

/// How many of [`ALGORITHMS`] are those of nvFuser's benchmark.
pub(super) const TABLE: usize = 7;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    baseline_nccl::ALGORITHM,
    baseline_cuda::ALGORITHM,
    naive_remote_read::ALGORITHM,
    threadload_gather_scalar::ALGORITHM,
    multimem_gather_scalar::ALGORITHM,
    threadload_gather_cutlass::ALGORITHM,
    multimem_gather_cutlass::ALGORITHM,
    then_matmul::ALGORITHM,
    direct_exchange::ALGORITHM,
    ring_get::ALGORITHM,
    ring_put::ALGORITHM,
    push_chunks::ALGORITHM,
    push_chunks_waiting_gemm::ALGORITHM,
    fused::ALGORITHM,
    broadcast_pipeline::ALGORITHM,
    hierarchical::ALGORITHM,
];
