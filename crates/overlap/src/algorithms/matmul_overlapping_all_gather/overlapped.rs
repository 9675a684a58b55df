//! `overlappedAllGather`: the collective on a stream of its own.

use super::buffers::Operands;
use super::{COLLECTIVE, transport};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The collective on a stream of its own, begun before the GEMM: they share the SMs.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "overlappedAllGather",
    Operation::MatmulOverlappingAllGather,
    "the collective on a stream of its own, overlapped with the GEMM",
    build,
)
.parameters(&[COLLECTIVE]);

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let transport = transport(options.choice(COLLECTIVE.key));
    let place = (rank, world);
    let placements = [Placement::Local, transport.placement()];
    let mut plan = Operands::new(ALGORITHM.name, place, problem, placements);
    let gather = plan.builder.fork();
    plan.all_gather(gather, transport);
    plan.multiply(StreamId::MAIN);
    plan.builder.join(gather);
    plan.builder.finish()
}
