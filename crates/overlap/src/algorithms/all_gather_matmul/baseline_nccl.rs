//! `baselineNcclAllgatherMatmul`: what a framework does.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, Transport};

/// An NCCL all-gather, then cuBLASLt; NCCL brings its own synchronisation.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "baselineNcclAllgatherMatmul",
    Operation::AllGatherMatmul,
    "NCCL all-gather, then cuBLASLt",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    plan.gather_then_gemm(Transport::Nccl);
    plan.builder.finish()
}
