//! `reduceScatterPipeline`: every rank pushes partials of the others' rows as it computes them, and reduces
//! its own rows.

use crate::algorithms::nodes::NODES;
use crate::algorithms::reduction::{CHUNKS, Reach, STREAMS, Stored, by_owner};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Multiplies one owner's rows after the other's, starting with the next rank's and ending with its own. Each
/// chunk is pushed into its owner's staging as soon as it is multiplied, by copy engine on one stream, after
/// a credit: the owner has reduced what the previous call left there. Owners reduce each chunk once all its
/// partials are there, in the order of ranks, so that after the last GEMM only the last chunk's reduction
/// remains.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "reduceScatterPipeline",
    Operation::MatmulReduceScatter,
    "GEMMs by owner, partials pushed to it by copy engine and reduced in the order of ranks",
    build,
)
.parameters(&[STREAMS, CHUNKS, NODES])
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let (name, place) = (ALGORITHM.name, (rank, world));
    by_owner(name, options, place, problem, Stored::Plain, Reach::Owner)
}
