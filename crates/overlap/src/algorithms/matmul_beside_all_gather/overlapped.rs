//! `besideOverlapped`: the collective on a stream of its own.

use super::buffers::Operands;
use super::{COLLECTIVE, transport};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The collective on a stream of its own, begun before the product: they share the multiprocessors.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "besideOverlapped",
    operation: Operation::MatmulBesideAllGather,
    summary: "the collective on a stream of its own, beside the product",
    needs: Capabilities::NONE,
    parameters: &[COLLECTIVE],
    build,
    rows: None,
    redundant: None,
};

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let gather = plan.builder.fork();
    plan.all_gather(gather, transport(options.word(COLLECTIVE.key)));
    plan.multiply(StreamId::MAIN);
    plan.builder.join(gather);
    plan.builder.finish()
}
