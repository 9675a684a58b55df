//! `rowParallelLinearPipeline`: [`allReducePipeline`](crate::algorithms::matmul_all_reduce::pipeline) with
//! the weight as it is stored.

use crate::algorithms::nodes::NODES;
use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Multiplies one owner's rows after the other's, starting with the next rank's and ending with its own, and
/// pushes each chunk to its owner as soon as it is multiplied. The owner reduces it in the order of ranks and
/// pushes the result to all. C is symmetric, and holds the partials until results overwrite them. No credit
/// is needed: a rank receives an owner's result only after that owner has received its partial, and leaves a
/// call only with all results.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "rowParallelLinearPipeline",
    Operation::RowParallelLinear,
    "GEMMs by owner, partials pushed to it by copy engine, its results pushed to all",
    build,
)
.parameters(&[STREAMS, CHUNKS, NODES])
.batch_invariant(|options| options.count("nodes") == 1)
.takes_e4m3();

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
        Stored::Transposed,
        Reach::Everyone,
    )
}
