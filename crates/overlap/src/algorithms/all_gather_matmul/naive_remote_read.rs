//! `naiveRemoteRead`: no gather at all.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::kernels::NaiveRemoteRead;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// One kernel that reads each row of A from its owner, once for every element of C.
///
/// `ready`: "my A may be read". `done`: "I have read your A"; the kernel ends only after all peers have said
/// so, since its caller may overwrite A from then on.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "naiveRemoteRead",
    Operation::AllGatherMatmul,
    "one kernel, one thread an element of C, reading A from its owner",
    build,
);

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let kernel = NaiveRemoteRead {
        shape: plan.shape(),
        a: plan.a.elements,
        b: plan.b,
        c: plan.c,
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
