//! `multimemGatherThenCutlass`: gather by multicast stores, then a tensor-core GEMM.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::kernels::MultimemGather;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, Provider, StreamId};

/// The gather kernel, which ends when all rows have arrived, then the CUTLASS GEMM, then `free`, which only
/// now is true.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "multimemGatherThenCutlass",
    Operation::AllGatherMatmul,
    "a gather kernel of multicast stores, then the CUTLASS SM90 GEMM",
    build,
)
.needs(Capabilities {
    sm90: true,
    multicast: true,
});

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let staging = plan.staging(Placement::Multicast);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");
    let kernel = MultimemGather {
        shape: plan.gather_shape(),
        a: plan.a.elements,
        staging: staging.elements,
        ready,
        free,
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.gemm(Provider::Cutlass, staging);
    let peers = plan.builder.peers();
    plan.builder.signal(StreamId::MAIN, free, peers);
    plan.builder.finish()
}
