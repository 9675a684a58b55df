//! `matmulThenAllReduce`: what a framework does.

use crate::algorithms::reduction::{PartialGemm, Stored, TRANSPORT, transport};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Collective, Plan, Problem, StreamId};

/// One GEMM, then an all-reduce of it in place, by NCCL or over symmetric memory, in which C then lies.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "matmulThenAllReduce",
    Operation::MatmulAllReduce,
    "one GEMM, then an all-reduce in place",
    build,
)
.parameters(&[TRANSPORT])
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let transport = transport(options, TRANSPORT.key);
    let all = (transport.placement(), 0..problem.m);
    let place = (rank, world);
    let mut plan = PartialGemm::new(ALGORITHM.name, place, problem, Stored::Plain, all);

    let main = StreamId::MAIN;
    let c = plan.builder.whole(plan.c);
    plan.gemm(main, 0..problem.m, c.clone());
    plan.builder
        .collective(main, Collective::AllReduce, c.clone(), c, transport);
    plan.builder.finish()
}
