//! `multimemGatherScalarCompute`: gather by multicast stores, scalar GEMM, one launch.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::kernels::MultimemGatherMatmul;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// One kernel in which each owner stores its rows to all stagings at once and all compute from the unicast
/// alias of their own.
///
/// `ready`: "my rows are in your staging". `free`: "I have read your rows", a credit for the next call's
/// stores. A is read by its owner alone, so its caller may overwrite it as soon as the kernel has ended.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "multimemGatherScalarCompute",
    Operation::AllGatherMatmul,
    "one kernel: owners store their rows by multicast, then a scalar GEMM",
    build,
)
.needs(Capabilities {
    sm90: true,
    multicast: true,
});

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let kernel = MultimemGatherMatmul {
        shape: plan.shape(),
        a: plan.a.elements,
        b: plan.b,
        c: plan.c,
        staging: plan.staging(Placement::Multicast).elements,
        ready: plan.builder.slot("ready"),
        free: plan.builder.slot("free"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.builder.finish()
}
