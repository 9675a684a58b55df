//! `sequentialAllGather`: first the gather, then the GEMM.

use super::buffers::Operands;
use super::{COLLECTIVE, transport};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The collective, then the GEMM on the same stream, without overlap.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "sequentialAllGather",
    Operation::MatmulOverlappingAllGather,
    "the collective, then the GEMM on the same stream",
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
    plan.all_gather(StreamId::MAIN, transport);
    plan.multiply(StreamId::MAIN);
    plan.builder.finish()
}
