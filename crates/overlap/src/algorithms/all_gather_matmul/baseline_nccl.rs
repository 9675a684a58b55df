//! `baselineNcclAllgatherMatmul`: what a framework does.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{GemmProvider, Placement, Plan, Problem, StreamId, Transport};

/// The exact name.
pub const NAME: &str = "baselineNcclAllgatherMatmul";

/// An NCCL all-gather, then cuBLASLt; NCCL brings its own synchronisation.
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Local);
    let staging = plan.staging(Placement::Local);

    let (src, dst) = (plan.own_shard(), plan.builder.whole(staging));
    plan.builder
        .all_gather(StreamId::MAIN, src, dst, Transport::Nccl);
    plan.gemm(GemmProvider::CublasLt, staging);
    plan.builder.finish()
}
