//! `reduceScatterPipeline`: every rank pushes its part of each other's rows as it multiplies them, and sums its own.

use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// See [`build`].
pub const ALGORITHM: Algorithm = Algorithm {
    name: "reduceScatterPipeline",
    operation: Operation::MatmulReduceScatter,
    summary: "products by owner, each pushed to it by copy engine, sums in the order of ranks",
    needs: Capabilities::NONE,
    parameters: &[STREAMS, CHUNKS],
    build,
    rows: None,
};

/// The pipeline by owner: products of the next rank's rows first and of the own ones last, each chunk pushed as soon as it is
/// there; the owner sums.
fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let (name, place) = (ALGORITHM.name, (rank, world));
    by_owner(name, options, place, problem, Stored::Plain, Reach::Owner)
}
