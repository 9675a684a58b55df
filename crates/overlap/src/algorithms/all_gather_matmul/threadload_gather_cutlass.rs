//! `threadloadGatherThenCutlass`: gather by thread loads, then a tensor-core GEMM.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::kernels::ThreadloadGather;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, Provider, StreamId};

/// The gather kernel, then the CUTLASS GEMM: two launches on one stream. `ready` and `done` as in
/// [`naive_remote_read`](super::naive_remote_read).
pub const ALGORITHM: Algorithm = Algorithm::new(
    "threadloadGatherThenCutlass",
    Operation::AllGatherMatmul,
    "a gather kernel of thread loads, then the CUTLASS SM90 GEMM",
    build,
)
.needs(Capabilities::SM90);

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let staging = plan.staging(Placement::Local);
    let kernel = ThreadloadGather {
        shape: plan.gather_shape(),
        a: plan.a.elements,
        staging: staging.elements,
        ready: plan.builder.slot("ready"),
        done: plan.builder.slot("done"),
    };
    plan.builder.kernel(StreamId::MAIN, kernel);
    plan.gemm(Provider::Cutlass, staging);
    plan.builder.finish()
}
