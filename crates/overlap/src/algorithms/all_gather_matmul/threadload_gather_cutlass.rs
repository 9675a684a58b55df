//! `threadloadGatherThenCutlass`: gather by thread loads, then a tensor-core product.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{GemmProvider, Kernel, Placement, Plan, Problem, StreamId};

/// The exact name.
pub const NAME: &str = "threadloadGatherThenCutlass";

/// The gather kernel, then the CUTLASS product: two launches on one stream. `ready` and `done` as in
/// [`naive_remote_read`](super::naive_remote_read::build).
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Symmetric);
    let staging = plan.staging(Placement::Local);
    let kernel = Kernel::ThreadloadGather {
        shape: plan.gather_shape(),
        a: plan.a,
        staging,
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.gemm(GemmProvider::Cutlass, staging);
    plan.builder.finish()
}
