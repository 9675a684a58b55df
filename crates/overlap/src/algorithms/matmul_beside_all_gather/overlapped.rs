//! `besideOverlapped`: the collective on a stream of its own.

use super::buffers::Operands;
use super::{COLLECTIVE, transport};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem, StreamId};

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
    let transport = transport(options.word(COLLECTIVE.key));
    let place = (rank, world);
    let mut plan = Operands::new(ALGORITHM.name, place, problem, transport.placement());
    let gather = plan.builder.fork();
    plan.all_gather(gather, transport);
    plan.multiply(StreamId::MAIN);
    plan.builder.join(gather);
    plan.builder.finish()
}
