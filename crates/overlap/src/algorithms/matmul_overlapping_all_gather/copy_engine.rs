//! `copyEngineAllGather`: the gather by copy engines.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// Every rank pulls the X of all ranks into its Y on one stream, the next rank's first, while its GEMM has
/// all SMs. X is symmetric. A push into Y could not be stopped if its owner did not give Y.
///
/// `ready`: "my X is there". `taken`: "I have read your X"; the call ends only then.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "copyEngineAllGather",
    Operation::MatmulOverlappingAllGather,
    "pulls by copy engine while the GEMM has all SMs",
    build,
);

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(
        ALGORITHM.name,
        (rank, world),
        problem,
        [Placement::Symmetric, Placement::Local],
    );
    let main = StreamId::MAIN;
    let ready = plan.builder.slot("ready");
    let taken = plan.builder.slot("taken");
    let peers = plan.builder.peers();

    plan.builder.signal(main, ready, peers.clone());
    let pulls = plan.builder.fork();
    for &from in &peers {
        let (src, dst) = plan.x_of(from);
        plan.builder
            .wait(pulls, ready, [from])
            .copy(pulls, src, dst)
            .signal(pulls, taken, [from]);
    }
    // The local copy last: it shares no link with the pulls.
    let (src, dst) = plan.x_of(rank);
    plan.builder.copy(pulls, src, dst);
    plan.multiply(main);
    plan.builder.join(pulls).wait(main, taken, peers);
    plan.builder.finish()
}
