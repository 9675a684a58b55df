//! `threadloadGatherScalarCompute`: gather by thread loads, scalar GEMM, one launch.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::kernels::ThreadloadGatherMatmul;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// One kernel that gathers A into local staging and computes from there; `ready` and `done` as in
/// [`naive_remote_read`](super::naive_remote_read).
pub const ALGORITHM: Algorithm = Algorithm::new(
    "threadloadGatherScalarCompute",
    Operation::AllGatherMatmul,
    "one kernel: rows gathered into staging by thread loads, then a scalar GEMM",
    build,
);

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let kernel = ThreadloadGatherMatmul {
        shape: plan.shape(),
        a: plan.a.elements,
        b: plan.b,
        c: plan.c,
        staging: plan.staging(Placement::Local).elements,
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
