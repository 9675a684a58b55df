//! `fusedAllReduce`: one launch multiplies, pulls the parts of the own rows, sums them and pulls the sums of the others.

use crate::algorithms::reduction::{ROWS, SHOTS, Stored, in_shots, is_redundant};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// The tiles of other ranks' rows are left in own staging as they are computed, where their owners pull them; the owners' tiles
/// wait for these parts and add them in the order of ranks to their own f32 sums. The others pull the sums in their turn. The
/// launch ends when all ranks have pulled what they need, so that no credit is needed.
///
/// With `shots=1` each rank writes its part of C into the staging of all others and sums all of it by itself, in one trip over the link
/// instead of two: for outputs so small that flags take longer than bytes.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedAllReduce",
    operation: Operation::MatmulAllReduce,
    summary: "one SM90 GEMM whose tiles are pulled and summed by their owners, and these sums pulled by all; or go to everyone",
    needs: Capabilities::SM90,
    parameters: &[ROWS, SHOTS],
    build,
    rows: None,
    redundant: Some(is_redundant),
};

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let (name, place) = (ALGORITHM.name, (rank, world));
    in_shots(name, options, place, problem, Stored::Plain)
}
