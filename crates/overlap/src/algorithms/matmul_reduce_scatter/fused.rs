//! `fusedReduceScatter`: one launch multiplies, pulls the parts of the own rows, and sums.

use crate::algorithms::reduction::{ROWS, Reach, Stored, fused};
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// The tiles of other ranks' rows are left in own staging as they are computed, where their owners pull them; those of the own
/// rows come last, wait for the parts that are pulled meanwhile, and add them in the order of ranks to their own f32 sums, which
/// are never rounded. The launch ends when all ranks have pulled what is theirs, so that no credit is needed.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedReduceScatter",
    operation: Operation::MatmulReduceScatter,
    summary: "one SM90 GEMM whose tiles are pulled and summed by their owners",
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
    fused(name, options, place, problem, Stored::Plain, Reach::Owner)
}
