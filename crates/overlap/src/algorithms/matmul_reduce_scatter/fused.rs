//! `fusedReduceScatter`: one launch computes the partial GEMM and reduces this rank's rows.

use crate::algorithms::reduction::{ROWS, Reach, Stored, fused};
use crate::algorithms::{Algorithm, Capabilities, Options, TENSOR_OR_ROW};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Each rank leaves its partial tiles of other ranks' rows in its own staging, from which the owners pull
/// them. The tiles of its own rows come last: they wait for the partials, which are pulled meanwhile, and add
/// them in the order of ranks to their own f32 accumulators, which are rounded once. The launch ends when all
/// ranks have pulled what is theirs, so no credit is needed.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "fusedReduceScatter",
    Operation::MatmulReduceScatter,
    "one SM90 GEMM + reduce-scatter: owners pull and reduce partial tiles",
    build,
)
.needs(Capabilities::SM90)
.parameters(&[ROWS])
.takes_scales(|_| TENSOR_OR_ROW);

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let (name, place) = (ALGORITHM.name, (rank, world));
    fused(name, options, place, problem, Stored::Plain, Reach::Owner)
}
