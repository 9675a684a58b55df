//! `allReducePipeline`: every rank sums its rows as the parts of the others arrive, and pushes the sums to all.

use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Multiplies the rows of one owner after the other, those of the next rank first and the own ones last, and pushes each chunk
/// to its owner as soon as it is multiplied; the owner sums it in the order of ranks and pushes the sums to all. C is
/// symmetric, and holds the partial GEMMs until sums overwrite them. No credit is needed: a rank gets an owner's sums only
/// after that owner has got its part, and leaves a call only with all sums.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "allReducePipeline",
    operation: Operation::MatmulAllReduce,
    summary: "GEMMs by owner, each pushed to it by copy engine, its sums pushed to all",
    needs: Capabilities::NONE,
    parameters: &[STREAMS, CHUNKS],
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
    let (name, place) = (ALGORITHM.name, (rank, world));
    by_owner(
        name,
        options,
        place,
        problem,
        Stored::Plain,
        Reach::Everyone,
    )
}
