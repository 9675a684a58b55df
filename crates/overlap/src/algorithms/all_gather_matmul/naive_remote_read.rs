//! `naiveRemoteRead`: no gather at all.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{Kernel, Placement, Plan, Problem, StreamId};

/// The exact name.
pub const NAME: &str = "naiveRemoteRead";

/// One kernel that reads each row of A from its owner, once for every element of C.
///
/// `ready`: "my A may be read". `done`: "I have read your A"; the kernel ends only after all peers have said so,
/// since its caller may overwrite A from then on.
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let mut plan = Operands::new(NAME, (rank, world), problem, Placement::Symmetric);
    let kernel = Kernel::NaiveRemoteRead {
        shape: plan.shape(),
        a: plan.a,
        b: plan.b,
        c: plan.c,
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
