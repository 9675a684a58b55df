//! `directExchangePipeline`: every rank pulls every shard from its owner, step by step over a pool of
//! streams.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};
use warpweave_symm_mem::Priority;

/// nvFuser's lowered pipeline on a pool of S streams, the parameter `streams`. With j the step, from 0 to
/// world − 1:
///
/// - stream(j) = j mod S, all forked from the caller's stream and joined to it;
/// - recv_peer(j) = (rank + j) mod world: whose shard this rank gets and multiplies at step j;
/// - send_peer(j) = (world + rank − j) mod world: who gets this rank's shard at step j.
///
/// Step 0 multiplies this rank's own shard in place. Every other step pulls a shard by copy engine and then
/// multiplies it on the same stream, so that the copies of some steps overlap with the GEMMs of others.
///
/// `ready`: "my A may be read". `done`: "I have read your A". A call ends only after `done` of all peers,
/// because the caller may overwrite A from then on.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "directExchangePipeline",
    Operation::AllGatherMatmul,
    "pull every shard from its owner, step by step over a pool of streams",
    build,
)
.parameters(&[Parameter {
    key: "streams",
    summary: "streams of the pool",
    values: Values::Counts(&[4, 1, 2, 8]),
}])
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Symmetric);
    let main = StreamId::MAIN;
    if world == 1 {
        return plan.finish_alone();
    }
    let staging = plan.staging(Placement::Local);
    let ready = plan.builder.slot("ready");
    let done = plan.builder.slot("done");

    let send_peers: Vec<usize> = (1..world).map(|j| (world + rank - j) % world).collect();
    plan.builder.signal(main, ready, send_peers.clone());
    let streams = options.count("streams").clamp(1, world);
    let streams = plan.builder.pool(streams, Priority::High);
    for j in 0..world {
        let stream = streams[j % streams.len()];
        let recv_peer = (rank + j) % world;
        if j == 0 {
            plan.gemm_own(stream);
            continue;
        }
        let rows = plan.rows_of(recv_peer);
        let src = plan.shard_on(recv_peer);
        let dst = plan.rows_in(rank, staging, rows.clone());
        plan.builder.wait(stream, ready, [recv_peer]);
        plan.copy(stream, &src, &dst);
        plan.builder.signal(stream, done, [recv_peer]);
        plan.gemm_staged(stream, staging, rows);
    }
    for stream in streams {
        plan.builder.join(stream);
    }
    plan.builder.wait(main, done, send_peers);
    plan.builder.finish()
}
