//! `multimemGatherThenCutlass`: gather by multicast stores, then a tensor-core product.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{GemmProvider, Kernel, Placement, Plan, Problem, StreamId};

/// The exact name.
pub const NAME: &str = "multimemGatherThenCutlass";

/// The gather kernel, which ends when all rows have arrived, then the CUTLASS product, then `free`, which only now is
/// true.
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Local);
    let staging = plan.staging(Placement::Multicast);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");
    let kernel = Kernel::MultimemGather {
        shape: plan.gather_shape(),
        a: plan.a,
        staging,
        ready,
        free,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.gemm(GemmProvider::Cutlass, staging);
    let peers = plan.builder.peers();
    plan.builder.signal(StreamId::MAIN, free, peers);
    plan.builder.finish()
}
