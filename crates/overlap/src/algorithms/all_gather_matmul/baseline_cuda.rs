//! `baselineCudaAllgatherMatmul`: the project's own all-gather, with no SM taken from the GEMM.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{MulticastRegion, Placement, Plan, Problem, Provider, StreamId};

/// Every rank pushes its shard into the staging of all ranks, then cuBLASLt.
///
/// Pushes of all ranks on one stream each use the links better than pulls do (381 against 143 GB/s into each
/// of four GPUs). Where the problem allows multicast, one multicast copy takes the place of the pushes.
///
/// `ready`: "my rows are in your staging". `free`: "my GEMM has read your rows", a credit for the next call's
/// push.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "baselineCudaAllgatherMatmul",
    Operation::AllGatherMatmul,
    "push by copy engine, or one multicast copy where it is enabled, then cuBLASLt",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let multicast = problem.multicast && world > 1;
    let staging = plan.staging(if multicast {
        Placement::Multicast
    } else {
        Placement::Symmetric
    });
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");
    let main = StreamId::MAIN;
    let peers = plan.builder.peers();

    plan.builder.wait_credit(main, free, peers.clone());
    let src = plan.own_shard();
    if multicast {
        let all = plan.staged_on(rank, staging);
        for (src, dst) in src.regions().zip(all.regions()) {
            let dst = MulticastRegion {
                buffer: dst.buffer,
                rows: dst.rows.clone(),
                cols: dst.cols.clone(),
            };
            plan.builder.multicast_copy(main, src.clone(), dst);
        }
    } else {
        // The local copy last: it shares no link with the pushes and peers wait for those.
        for to in peers.iter().copied().chain([rank]) {
            let dst = plan.staged_on(to, staging);
            plan.copy(main, &src, &dst);
        }
    }
    plan.builder
        .signal(main, ready, peers.clone())
        .wait(main, ready, peers.clone());
    plan.gemm(Provider::CublasLt, staging);
    plan.builder.signal(main, free, peers);
    plan.builder.finish()
}
