//! `pushChunks`: every rank pushes its shard in chunks, and multiplies each chunk as soon as it arrives.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, SlotId, StreamId, chunks};
use warpweave_symm_mem::Priority;

/// Pushes by copy engine on one stream, the fastest all-gather by copy engines: to rank r + 1 first, then r +
/// 2 and so on, so that every rank receives from one other at a time. Each shard goes in `chunks` chunks of
/// rows, followed by a signal each. This rank's shard is multiplied first, then the chunks in the order of
/// arrival.
///
/// The GEMMs go round `streams` streams, of which the caller's is the first: the last wave of a GEMM rarely
/// fills the device, and the next GEMM's tiles take the free SMs. A stream waits only for the chunks that it
/// multiplies.
///
/// `ready i`: its n-th signal of a call says "the n-th of my chunks that stream i multiplies is in your
/// staging". `free`: "my GEMMs have read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "pushChunks",
    Operation::AllGatherMatmul,
    "push by copy engine in chunks of a shard, GEMMs chunk by chunk",
    build,
)
.parameters(&[
    Parameter {
        key: "chunks",
        summary: "chunks of a shard",
        values: Values::Counts(&[4, 1, 2, 8]),
    },
    Parameter {
        key: "streams",
        summary: "streams over which the GEMMs are dealt round-robin",
        values: Values::Counts(&[2, 1, 3]),
    },
])
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let main = StreamId::MAIN;
    if world == 1 {
        return plan.finish_alone();
    }
    let staging = plan.staging(Placement::Symmetric);
    // Ranks must agree on the stream of a chunk, so it follows from the largest shard.
    let count = chunks(plan.rows_of(0), options.count("chunks")).count();
    let streams = options.count("streams").min((world - 1) * count);
    let stream_of = |step: usize, chunk: usize| (1 + (step - 1) * count + chunk) % streams;
    let ready: Vec<SlotId> = (0..streams)
        .map(|stream| plan.builder.slot(format!("ready {stream}")))
        .collect();
    let free = plan.builder.slot("free");

    let pushes = plan.builder.fork();
    let mut compute = vec![main];
    compute.extend(plan.builder.pool(streams - 1, Priority::Normal));
    plan.gemm_own(main);
    plan.push(pushes, staging, count, free, |step, chunk| {
        ready[stream_of(step, chunk)]
    });
    // Whoever has this rank as the first of its peers is the first to arrive here.
    for step in 1..world {
        let from = (rank + world - step) % world;
        for (chunk, rows) in chunks(plan.rows_of(from), count).enumerate() {
            let stream = stream_of(step, chunk);
            plan.builder.wait(compute[stream], ready[stream], [from]);
            plan.gemm_staged(compute[stream], staging, rows);
        }
    }
    for &stream in &compute[1..] {
        plan.builder.join(stream);
    }
    let peers = plan.builder.peers();
    plan.builder.signal(main, free, peers).join(pushes);
    plan.builder.finish()
}
