//! `broadcastPipeline`: shard by shard, one owner at a time.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// At step s rank s pushes its shard into the staging of all others. They multiply it while the next owner
/// pushes its own. An owner starts only once the shard before its own has arrived, so one rank at a time uses
/// the links.
///
/// `ready`: "my shard is in your staging". `free`: "my GEMMs have read all shards", a credit that only rank 0
/// needs: every later owner pushes after rank 0's shard has arrived.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "broadcastPipeline",
    Operation::AllGatherMatmul,
    "one owner after the other pushes to all, GEMMs after",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let main = StreamId::MAIN;
    if world == 1 {
        return plan.finish_alone();
    }
    let staging = plan.staging(Placement::Symmetric);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");
    let peers = plan.builder.peers();

    let transfers = plan.builder.fork();
    plan.gemm_own(main);
    for owner in 0..world {
        if owner == rank {
            if rank == 0 {
                plan.builder.wait_credit(transfers, free, peers.clone());
            }
            for &to in &peers {
                let (src, dst) = (plan.own_shard(), plan.staged_on(to, staging));
                plan.copy(transfers, &src, &dst);
            }
            plan.builder.signal(transfers, ready, peers.clone());
        } else {
            let rows = plan.rows_of(owner);
            plan.builder
                .wait(transfers, ready, [owner])
                .order(transfers, main);
            plan.gemm_staged(main, staging, rows);
        }
    }
    if rank > 0 {
        plan.builder.signal(main, free, [0]);
    }
    if rank + 1 == world {
        plan.builder.join(transfers);
    }
    plan.builder.finish()
}
