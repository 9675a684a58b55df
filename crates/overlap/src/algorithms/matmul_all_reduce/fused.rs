//! `fusedAllReduce`: one launch multiplies, sends parts to their owners, sums them and sends the sums.

use crate::algorithms::reduction::{ROWS, Reach, Stored, fused};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// The tiles of other ranks' rows are stored into their owners' staging as they are computed; the owners' tiles wait for the parts,
/// add them in f32 in the order of ranks, and are stored into the C of every rank. The launch ends when all of C is summed,
/// so that no credit is needed.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedAllReduce",
    operation: Operation::MatmulAllReduce,
    summary: "one SM90 product whose tiles are stored to their owners, summed there, and stored to all",
    needs: Capabilities::SM90,
    parameters: &[ROWS],
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
    fused(
        name,
        options,
        place,
        problem,
        Stored::Plain,
        Reach::Everyone,
    )
}
