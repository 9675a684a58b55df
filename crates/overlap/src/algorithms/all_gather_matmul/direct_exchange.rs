//! `directExchangePipeline`: every rank pulls every shard from its owner, step by step over a pool of streams.

use super::buffers::Operands;
use crate::error::PlanError;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The name of the pipeline on [`DEFAULT_STREAMS`] streams; another number stands behind it and a colon.
pub const NAME: &str = "directExchangePipeline";

/// Streams of the pipeline where its name does not say how many.
pub const DEFAULT_STREAMS: usize = 4;

/// nvFuser's lowered pipeline on a pool of `STREAMS` streams. With j the step, from 0 to world − 1:
///
/// - stream(j) = j mod `STREAMS`, all forked from the caller's stream and joined to it;
/// - recv_peer(j) = (rank + j) mod world: whose shard this rank gets and multiplies at step j;
/// - send_peer(j) = (world + rank − j) mod world: who gets this rank's shard at step j.
///
/// Step 0 multiplies this rank's own shard where it lies; every other one pulls a shard by copy engine and multiplies it
/// behind that on the same stream, so that the copies of some steps run beside the products of others.
///
/// `ready`: "my A may be read". `done`: "I have read your A"; the call ends only after all peers have said so, since its
/// caller may overwrite A from then on.
///
/// # Errors
/// The problem is empty, or `rank` is not below `world`.
pub fn build<const STREAMS: usize>(
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    problem.validate(rank, world)?;
    let name = match STREAMS {
        DEFAULT_STREAMS => NAME.to_owned(),
        streams => format!("{NAME}:{streams}"),
    };
    let mut plan = Operands::new(&name, (rank, world), problem, Placement::Symmetric);
    let main = StreamId::MAIN;
    if world == 1 {
        plan.gemm_own(main);
        return plan.builder.finish();
    }
    let staging = plan.staging(Placement::Local);
    let ready = plan.builder.slot("ready");
    let done = plan.builder.slot("done");

    let send_peers: Vec<usize> = (1..world).map(|j| (world + rank - j) % world).collect();
    plan.builder.signal(main, ready, send_peers.clone());
    let streams: Vec<StreamId> = (0..STREAMS.clamp(1, world))
        .map(|_| plan.builder.fork())
        .collect();
    for j in 0..world {
        let stream = streams[j % streams.len()];
        let recv_peer = (rank + j) % world;
        if j == 0 {
            plan.gemm_own(stream);
            continue;
        }
        let rows = plan.rows_of(recv_peer);
        let src = plan
            .builder
            .on(recv_peer, plan.a, 0..rows.len(), 0..problem.k);
        let dst = plan.staged_rows(rank, staging, rows.clone());
        plan.builder
            .wait(stream, ready, [recv_peer])
            .copy(stream, src, dst)
            .signal(stream, done, [recv_peer]);
        plan.gemm_staged(stream, staging, rows);
    }
    for stream in streams {
        plan.builder.join(stream);
    }
    plan.builder.wait(main, done, send_peers);
    plan.builder.finish()
}
