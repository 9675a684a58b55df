//! `besideInSequence`: first the gather, then the product.

use super::buffers::Operands;
use super::{COLLECTIVE, transport};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The collective, then the product on the same stream: nothing hides anything.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "besideInSequence",
    operation: Operation::MatmulBesideAllGather,
    summary: "the collective, then the product on the same stream",
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
    plan.all_gather(StreamId::MAIN, transport(options.word(COLLECTIVE.key)));
    plan.multiply(StreamId::MAIN);
    plan.builder.finish()
}
