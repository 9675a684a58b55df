//! `fusedRowParallelLinear`: the fused all-reduce with the weight as it is stored.

use crate::algorithms::reduction::{
    REDUCE, ROWS, SHOTS, Stored, in_shots, is_multimem, is_redundant,
};
use crate::algorithms::{Algorithm, Capabilities, Options, TENSOR_OR_ROW};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};

/// Each rank leaves its partial tiles of other ranks' rows in its own staging, from which the owners pull
/// them. An owner's tiles wait for these partials and add them, in the order of ranks, to their own f32
/// accumulators. The other ranks then pull the results. The launch ends when all ranks have pulled what they
/// need, so no credit is needed.
///
/// With `shots=1` each rank pushes its partial C into the staging of all others, and every rank reduces all
/// of C: one link crossing instead of two. This is for outputs so small that latency exceeds transfer time.
///
/// With `reduce=multimem` owners load what the switch adds, and store what it copies to all. This needs
/// NVLink multicast.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "fusedRowParallelLinear",
    Operation::RowParallelLinear,
    "one SM90 GEMM + all-reduce: owners pull and reduce partial tiles, then all pull the results; \
     or partials are pushed to all",
    build,
)
.needs(Capabilities::SM90)
.multicast(is_multimem)
.parameters(&[ROWS, SHOTS, REDUCE])
.redundant(is_redundant)
.batch_invariant(|options| !is_multimem(options))
.takes_scales(|_| TENSOR_OR_ROW);

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let (name, place) = (ALGORITHM.name, (rank, world));
    in_shots(name, options, place, problem, Stored::Transposed)
}
