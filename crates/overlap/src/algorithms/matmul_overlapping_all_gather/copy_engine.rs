//! `copyEngineAllGather`: the gather by copy engines.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// Every rank pushes its X into the Y of all ranks on one stream, to the next rank first, while its GEMM has
/// all SMs. Y is symmetric.
///
/// `free`: "my caller has read the Y of the previous call". `ready`: "my X is in your Y".
pub const ALGORITHM: Algorithm = Algorithm {
    name: "copyEngineAllGather",
    operation: Operation::MatmulOverlappingAllGather,
    summary: "pushes by copy engine while the GEMM has all SMs",
    needs: Capabilities::NONE,
    parameters: &[],
    build,
    rows: None,
    redundant: None,
};

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let main = StreamId::MAIN;
    let free = plan.builder.slot("free");
    let ready = plan.builder.slot("ready");
    let peers = plan.builder.peers();

    plan.builder.signal(main, free, peers.clone());
    let pushes = plan.builder.fork();
    for &to in &peers {
        let (src, dst) = plan.x_to(to);
        plan.builder
            .wait(pushes, free, [to])
            .put(pushes, src, dst, ready);
    }
    // The local copy last: it shares no link with the pushes and peers wait for those.
    let (src, dst) = plan.x_to(rank);
    plan.builder.copy(pushes, src, dst);
    plan.multiply(main);
    plan.builder.join(pushes).wait(main, ready, peers);
    plan.builder.finish()
}
