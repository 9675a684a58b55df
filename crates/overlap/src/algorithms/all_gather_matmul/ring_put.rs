//! `ringPut`: the ring, each rank sending on to its right neighbour.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// At step s a rank multiplies the shard of rank (r − s) mod world and meanwhile puts it into the staging of
/// its right neighbour r + 1, which multiplies it at step s + 1.
///
/// `staging` has rows of its own for each shard: within a call nothing is overwritten, so no barrier is
/// needed. A is read by its owner alone.
///
/// `ready`: its n-th signal of a call says "the shard of your step n is in your staging". `free`: "I have
/// multiplied and sent on all that you put", a credit for the next call's puts.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "ringPut",
    Operation::AllGatherMatmul,
    "the ring: put the current shard to the right neighbour during its GEMM",
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
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");

    let puts = plan.builder.fork();
    plan.gemm_own(main);
    plan.builder.wait_credit(puts, free, [right]);
    let (src, dst) = (plan.own_shard(), plan.staged_on(right, staging));
    plan.put(puts, &src, &dst, ready);
    for step in 1..world {
        let rows = plan.rows_of((rank + world - step) % world);
        plan.builder.wait(puts, ready, [left]).order(puts, main);
        if step + 1 < world {
            let src = plan.rows_in(rank, staging, rows.clone());
            let dst = plan.rows_in(right, staging, rows.clone());
            plan.put(puts, &src, &dst, ready);
        }
        plan.gemm_staged(main, staging, rows);
    }
    // The last arrival comes after all puts, and main after it.
    plan.builder.signal(main, free, [left]);
    plan.builder.finish()
}
