//! `pushChunks`: every rank pushes its shard in chunks, and a chunk is multiplied as soon as it is here.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, SlotId, StreamId, chunks};
use warpweave_symm_mem::Priority;

/// Pushes by copy engine on one stream, the fastest all-gather by copy engines: to rank r + 1 first, then r + 2 and so on,
/// so that at each time every rank receives from one other. Each shard goes in `chunks` chunks of rows with a signal
/// after each. This rank's shard is multiplied first, then chunk after chunk in the order of their arrival.
///
/// The GEMMs go round `streams` streams, the caller's the first of them: the last tiles of a GEMM rarely fill the
/// device, and those of the next one begin beside them. A stream waits for the chunks that it multiplies and for no others.
///
/// `ready i`: its n-th signal of a call says "the n-th of my chunks that stream i multiplies is in your staging". `free`: "my
/// GEMMs have read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "pushChunks",
    operation: Operation::AllGatherMatmul,
    summary: "push by copy engine in chunks of a shard, GEMMs chunk by chunk",
    needs: Capabilities::NONE,
    parameters: &[
        Parameter {
            key: "chunks",
            summary: "chunks of a shard",
            values: Values::Counts(&[4, 1, 2, 8]),
        },
        Parameter {
            key: "streams",
            summary: "streams that take the GEMMs in turn",
            values: Values::Counts(&[2, 1, 3]),
        },
    ],
    build,
    rows: None,
    redundant: None,
};

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let main = StreamId::MAIN;
    if world == 1 {
        plan.gemm_own(main);
        return plan.builder.finish();
    }
    let staging = plan.staging(Placement::Symmetric);
    // Ranks agree on the stream of a chunk, so it follows from the largest shard, whoever's the chunk is.
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
