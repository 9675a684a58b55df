//! `allGatherThenMatmul`: what a framework does, over symmetric memory.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId, Transport};

/// One all-gather over symmetric memory, in which the staging lies, then one GEMM of all rows on the same
/// stream. For small problems, which leave little to overlap. Where shards are not of one size, the executor
/// broadcasts each of them.
///
/// The collective synchronizes: it ends on no rank before all have entered it, and the next call's enters
/// after this call's GEMM has read the staging.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "allGatherThenMatmul",
    Operation::AllGatherMatmul,
    "an all-gather over symmetric memory, then one GEMM",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    match world {
        1 => plan.gemm_own(StreamId::MAIN),
        _ => plan.gather_then_gemm(Transport::SymmetricMemory),
    }
    plan.builder.finish()
}
