//! `reduceScatterPipeline`: every rank pushes its part of each other's rows as it multiplies them, and sums its own.

use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Multiplies the rows of one owner after the other, those of the next rank first and the own ones last. Each chunk is pushed
/// into its owner's staging as soon as it is multiplied, by copy engine on one stream, after a credit that says that the
/// owner has summed what the previous call left there. Owners sum their chunks as they become whole, in the order of ranks, so
/// that after the last GEMM there is only the last chunk's sum to wait for.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "reduceScatterPipeline",
    operation: Operation::MatmulReduceScatter,
    summary: "GEMMs by owner, each pushed to it by copy engine, sums in the order of ranks",
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
    by_owner(name, options, place, problem, Stored::Plain, Reach::Owner)
}
