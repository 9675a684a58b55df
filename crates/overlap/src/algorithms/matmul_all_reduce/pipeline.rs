//! `allReducePipeline`: every rank sums its rows as the parts of the others arrive, and pushes the sums to all.

use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// See [`build`].
pub const ALGORITHM: Algorithm = Algorithm {
    name: "allReducePipeline",
    operation: Operation::MatmulAllReduce,
    summary: "products by owner, each pushed to it by copy engine, its sums pushed to all",
    needs: Capabilities::NONE,
    parameters: &[STREAMS, CHUNKS],
    build,
    rows: None,
};

/// The pipeline by owner, whose sums every owner pushes to all, chunk by chunk. C is symmetric.
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
