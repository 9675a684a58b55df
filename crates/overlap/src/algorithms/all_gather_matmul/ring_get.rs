//! `ringGet`: the ring, each rank pulling from its left neighbour.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// At step s a rank multiplies the shard of rank (r − s) mod world, which it got from its left neighbour r −
/// 1 while it multiplied the shard before.
///
/// The first get reads the neighbour's `a`, the later ones its `staging`, where each shard has its own rows:
/// within a call nothing is overwritten, so no barrier is needed.
///
/// `ready`: its n-th signal of a call says "the shard of your n-th get is here". `taken`: "I have read your
/// A"; the call ends only then. `free`: "I have read your staging", a credit for the next call's gets into
/// it.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "ringGet",
    Operation::AllGatherMatmul,
    "the ring: get the next shard from the left neighbour during the current GEMM",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let main = StreamId::MAIN;
    if world == 1 {
        return plan.finish_alone();
    }
    let staging = plan.staging(Placement::Symmetric);
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    let ready = plan.builder.slot("ready");
    let taken = plan.builder.slot("taken");
    // Two ranks read nothing but each other's A.
    let free = (world > 2).then(|| plan.builder.slot("free"));

    plan.builder.signal(main, ready, [right]);
    let gets = plan.builder.fork();
    plan.gemm_own(main);
    if let Some(free) = free {
        plan.builder.wait_credit(gets, free, [right]);
    }
    for step in 1..world {
        let rows = plan.rows_of((rank + world - step) % world);
        let src = match step {
            1 => plan.shard_on(left),
            _ => plan.rows_in(left, staging, rows.clone()),
        };
        let dst = plan.rows_in(rank, staging, rows.clone());
        plan.builder.wait(gets, ready, [left]);
        plan.copy(gets, &src, &dst);
        if step == 1 {
            plan.builder.signal(gets, taken, [left]);
        }
        if step + 1 < world {
            plan.builder.signal(gets, ready, [right]);
        } else if let Some(free) = free {
            plan.builder.signal(gets, free, [left]);
        }
        plan.builder.order(gets, main);
        plan.gemm_staged(main, staging, rows);
    }
    plan.builder.wait(main, taken, [right]);
    plan.builder.finish()
}
