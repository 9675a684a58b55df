//! `threadloadGatherScalarCompute`: gather by thread loads, scalar product, one launch.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{Kernel, Placement, Plan, Problem, StreamId};

/// The exact name.
pub const NAME: &str = "threadloadGatherScalarCompute";

/// One kernel that gathers A into local staging and computes from there; `ready` and `done` as in
/// [`naive_remote_read`](super::naive_remote_read::build).
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Symmetric);
    let kernel = Kernel::ThreadloadGatherMatmul {
        shape: plan.shape(),
        a: plan.a,
        b: plan.b,
        c: plan.c,
        staging: plan.staging(Placement::Local),
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
