//! `threadloadGatherThenCutlass`: gather by thread loads, then a tensor-core product.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{GemmProvider, Kernel, Placement, Plan, Problem, StreamId};

/// The exact name.
pub const NAME: &str = "threadloadGatherThenCutlass";

/// The gather kernel, then the CUTLASS product: two launches on one stream. `ready` and `done` as in
/// [`naive_remote_read`](super::naive_remote_read::build); the wait for `done`, which only the next write of A needs, comes
/// last, where it hides behind the product.
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Symmetric);
    let staging = plan.staging(Placement::Local);
    let ready = plan.builder.slot("ready");
    let done = plan.builder.slot("done");
    let kernel = Kernel::ThreadloadGather {
        shape: plan.gather_shape(),
        a: plan.a,
        staging,
        ready,
        done,
    };
    let peers = plan.builder.peers();
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.gemm(GemmProvider::Cutlass, staging);
    if !peers.is_empty() {
        plan.builder.wait(StreamId::MAIN, done, peers);
    }
    plan.builder.finish()
}
