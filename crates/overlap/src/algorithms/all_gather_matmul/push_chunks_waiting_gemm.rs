//! `pushChunksWaitingGemm`: every rank pushes its shard in chunks, and one GEMM waits per chunk.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::ChunkedMatmul;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};

/// The pushes of `pushChunks`, with one launch in place of its GEMMs, so that only the last wave of tiles is
/// partly filled. Its tiles take this rank's rows first, then the chunks in the order of arrival.
///
/// `ready`: its n-th signal of a call says "the n-th chunk of my shard is in your staging". `free`: "my GEMM
/// has read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "pushChunksWaitingGemm",
    Operation::AllGatherMatmul,
    "push by copy engine in chunks of a shard, one CUTLASS GEMM that waits per chunk",
    build,
)
.needs(Capabilities::SM90)
.parameters(&[Parameter {
    key: "chunks",
    summary: "chunks of a shard",
    values: Values::Counts(&[2, 1, 4, 8]),
}]);

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
        return plan.finish_alone();
    }
    let staging = plan.staging(Placement::Symmetric);
    let ready = plan.builder.slot("ready");
    let free = plan.builder.slot("free");

    let pushes = plan.builder.fork();
    plan.push(pushes, staging, count, free, |_, _| ready);
    let kernel = ChunkedMatmul {
        shape: plan.shape(),
        a: plan.a.elements,
        b: plan.b,
        c: plan.c,
        staging: staging.elements,
        ready,
        chunks: count,
    };
    let peers = plan.builder.peers();
    plan.builder
        .kernel(main, kernel)
        .signal(main, free, peers)
        .join(pushes);
    plan.builder.finish()
}
