//! `matmulThenReduceScatter`: what a framework does.

use crate::algorithms::reduction::{PartialGemm, Stored, TRANSPORT, transport};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Collective, Placement, Plan, Problem, StreamId};

/// One GEMM, then a reduce-scatter of it, by NCCL or over symmetric memory, in which the partial GEMM then
/// lies. Over symmetric memory shards must be of one size: an executor refuses others.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "matmulThenReduceScatter",
    Operation::MatmulReduceScatter,
    "one GEMM, then a reduce-scatter",
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
    let own = (Placement::Local, problem.shard(rank, world));
    let place = (rank, world);
    let mut plan = PartialGemm::new(ALGORITHM.name, place, problem, Stored::Plain, own);
    let partial = plan.buffer("partial", transport.placement(), problem.m);

    let main = StreamId::MAIN;
    let [src, dst] = [partial, plan.c].map(|id| plan.builder.whole(id));
    plan.gemm(main, 0..problem.m, src.clone());
    plan.builder
        .collective(main, Collective::ReduceScatter, src, dst, transport);
    plan.builder.finish()
}
