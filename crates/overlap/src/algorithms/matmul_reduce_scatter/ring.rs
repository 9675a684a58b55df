//! `reduceScatterRing`: partials travel round the ring, and each rank adds its own.

use crate::algorithms::reduction::{PartialGemm, Stored};
use crate::algorithms::{Algorithm, Options};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};
use warpweave_symm_mem::Priority;

/// At step s rank r multiplies the rows of rank (r − 1 − s) mod world and, from step 1 on, adds the partial
/// from its left neighbour r − 1. It puts the result into the staging of its right neighbour r + 1, which
/// adds its own at step s + 1. At the last step the rows are its own and stay. GEMMs, reductions and puts
/// have a stream each, so that the GEMMs run back to back while partials travel.
///
/// `staging` has rows of its own for each shard: nothing is overwritten within a call, so no barrier is
/// needed. Each row is reduced in one order, from its owner's right neighbour round to its owner, and rounded
/// at every step.
///
/// `ready`: its n-th signal of a call says "the n-th partial that I put is in your staging". `free`: "I have
/// added all that you put", a credit for the next call's puts.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "reduceScatterRing",
    Operation::MatmulReduceScatter,
    "the ring: partials go to the right neighbour, each rank adds its own",
    build,
)
.takes_e4m3();

fn build(_: &Options, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
    let own = (Placement::Local, problem.shard(rank, world));
    let place = (rank, world);
    let mut plan = PartialGemm::new(ALGORITHM.name, place, problem, Stored::Plain, own);
    let main = StreamId::MAIN;
    if world == 1 {
        let c = plan.builder.whole(plan.c);
        plan.gemm(main, 0..problem.m, c);
        return plan.builder.finish();
    }
    let partial = plan.buffer("partial", Placement::Local, problem.m);
    let staging = plan.buffer("staging", Placement::Symmetric, problem.m);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);

    let has_rows = |owner: usize| !problem.shard(owner, world).is_empty();
    let puts_any = |rank: usize| (0..world).any(|owner| owner != rank && has_rows(owner));
    // Before any GEMM begins: a wait is a kernel, and while a persistent GEMM runs it finds no SM.
    if puts_any(rank) {
        plan.builder.wait_credit(main, free, [right]);
    }
    let gemms = plan.builder.fork_with(Priority::Normal);
    let mut puts = None;
    for step in 0..world {
        let owner = (rank + 2 * world - 1 - step) % world;
        let rows = plan.rows_of(owner);
        if rows.is_empty() {
            continue;
        }
        let part = match owner == rank {
            true => plan.builder.whole(plan.c),
            false => plan.own(partial, rows.clone()),
        };
        plan.gemm(gemms, rows.clone(), part.clone());
        let mut last = gemms;
        if step > 0 {
            let arrived = plan.own(staging, rows.clone());
            plan.builder
                .order(gemms, main)
                .wait(main, ready, [left])
                .reduce(main, vec![arrived, part.clone()], part.clone());
            last = main;
        }
        if owner != rank {
            let there = plan.on(right, staging, rows);
            let puts = plan.after(&mut puts, last);
            plan.builder.put(puts, part, there, ready);
        }
    }
    if puts_any(left) {
        plan.builder.signal(main, free, [left]);
    }
    if let Some(puts) = puts {
        plan.builder.join(puts);
    }
    plan.builder.finish()
}
