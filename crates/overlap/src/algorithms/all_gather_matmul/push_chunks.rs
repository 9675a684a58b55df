//! `pushChunks`: every rank pushes its shard in chunks, and a chunk is multiplied as soon as it is here.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId, chunks};

/// See [`build`].
pub const ALGORITHM: Algorithm = Algorithm {
    name: "pushChunks",
    operation: Operation::AllGatherMatmul,
    summary: "push by copy engine in chunks of a shard, products chunk by chunk",
    needs: Capabilities::NONE,
    parameters: &[Parameter {
        key: "chunks",
        summary: "chunks of a shard",
        values: Values::Counts(&[2, 1, 4, 8]),
    }],
    build,
    rows: None,
};

/// Pushes by copy engine on one stream, the fastest all-gather by copy engines: to rank r + 1 first, then r + 2 and so on,
/// so that at each time every rank receives from one other. Each shard goes in `chunks` chunks of rows with a signal
/// behind each. The caller's stream multiplies this rank's shard, then chunk after chunk in the order of their arrival.
///
/// `ready`: its n-th signal of a call says "the n-th chunk of my shard is in your staging". `free`: "my products have read
/// your rows", a credit for the next call's pushes.
fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let count = options.count("chunks");
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    let main = StreamId::MAIN;
    if world == 1 {
        plan.gemm_own(main);
        return plan.builder.finish();
    }
    let staging = plan.staging(Placement::Symmetric);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");

    let pushes = plan.builder.fork();
    plan.gemm_own(main);
    plan.push(pushes, staging, count, (ready, free));
    // Whoever has this rank as the first of its peers is the first to arrive here.
    for step in 1..world {
        let from = (rank + world - step) % world;
        for rows in chunks(plan.rows_of(from), count) {
            plan.builder.wait(main, ready, [from]);
            plan.gemm_staged(main, staging, rows);
        }
    }
    let peers = plan.builder.peers();
    plan.builder.signal(main, free, peers).join(pushes);
    plan.builder.finish()
}
