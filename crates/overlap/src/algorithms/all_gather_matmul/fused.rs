//! `fusedAllGather`: one launch that gathers A and computes the GEMM. Copy engines may bring some of the
//! rows.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, TENSOR_OR_ROW, Values};
use crate::error::PlanError;
use crate::kernels::{AllGatherMatmul, GatherProtocol};
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};
use warpweave_gemm as gemm;

/// One hand-written kernel. A warp of each block pulls peers' rows by bulk copies while the other warps
/// compute the GEMM. The tiles take this rank's rows first, then the chunks of the others in the order of
/// arrival, each as its slices of K come.
///
/// If `pulled` is less than 8 eighths, copy engines push the first chunks of each shard, to each peer in one
/// piece: they reach more of the link's bandwidth than loads do, but only in large pieces, and the last rows
/// must come in small ones.
///
/// With `protocol=eager` every rank pushes its shard into the staging of all others as soon as its launch
/// begins, in at most 128 chunks with a flag (`arrived`) each. There is no other signal: calls alternate
/// between two stagings. On two H200s this is faster where the GEMM alone takes less than about 30 µs.
///
/// Otherwise there are two flags. `ready`: "my A may be read", and with pushes also "my pushed rows are in
/// your staging". `done`: "I have read your A". A call ends only after `done` of all peers, so that the next
/// may push.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "fusedAllGather",
    Operation::AllGatherMatmul,
    "one SM90 kernel: each block pulls peers' rows, or pushes its own, while it multiplies what has arrived",
    |options, rank, world, problem| build(&ALGORITHM, options, (rank, world), problem),
)
.needs(Capabilities::SM90)
.parameters(&[
        Parameter {
            key: "chunks",
            summary: "most chunks of a shard: as many as are best, unless some are pushed",
            values: Values::Counts(&[CHUNKS]),
        },
        Parameter {
            key: "pulled",
            summary: "eighths of a shard, at least, that are pulled and not pushed",
            values: Values::Counts(&[EIGHTHS, 3]),
        },
        Parameter {
            key: "protocol",
            summary: "rendezvous: peers pull a shard once its owner has signalled; \
                      eager: the owner pushes it at once",
            values: Values::Choices(&["rendezvous", "eager"]),
        },
    ])
.redundant(|options| match options.choice("protocol") {
        "eager" => options.count("chunks") != CHUNKS || options.count("pulled") != EIGHTHS,
        _ => options.count("pulled") != EIGHTHS && pushed_of(options.count("chunks"), options) == 0,
    })
.takes_scales(|_| TENSOR_OR_ROW);

const CHUNKS: usize = 8;

const EIGHTHS: usize = 8;

/// How many of `chunks` chunks are pushed.
fn pushed_of(chunks: usize, options: &Options) -> usize {
    chunks * EIGHTHS.saturating_sub(options.count("pulled")) / EIGHTHS
}

/// The plan of a GEMM or of a linear layer: the launch takes the weight as stored, and adds the bias if there
/// is one.
pub(in crate::algorithms) fn build(
    algorithm: &Algorithm,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let Algorithm {
        operation, name, ..
    } = *algorithm;
    let is_eager = options.choice("protocol") == "eager";
    let placement = match is_eager {
        true => Placement::Local,
        false => Placement::Symmetric,
    };
    let shard = problem.max_shard(world);
    let a = (placement, shard);
    let mut plan = Operands::of(operation, name, (rank, world), problem, a);
    let main = StreamId::MAIN;
    if world == 1 {
        return plan.finish_alone();
    }
    let pulls_all = options.count("pulled") >= EIGHTHS;
    let most = options.count("chunks");
    let chunk_rows = match (is_eager, pulls_all) {
        (true, _) => gemm::AllGatherMatmul::eager_chunk_rows(shard),
        (_, true) => {
            let Problem { m, n, k, dtype, .. } = *problem;
            let gemm = gemm::GemmProblem::new(m, n, k, dtype);
            let best = gemm::AllGatherMatmul::best_chunks(&gemm, world);
            gemm::AllGatherMatmul::chunk_rows(shard, best.min(most))
        }
        _ => gemm::AllGatherMatmul::chunk_rows(shard, most),
    };
    let chunks = shard.div_ceil(chunk_rows);
    let pushed = match is_eager {
        true => 0,
        false => pushed_of(chunks, options),
    };
    // Where it lies and how many flags there are does not shrink with more rows: what serves the largest M
    // serves all.
    let is_pushed_to = is_eager || pushed_of(most, options) > 0;
    let staging = plan.staging(match is_pushed_to {
        true => Placement::Symmetric,
        false => Placement::Local,
    });
    let (ready, protocol) = match is_eager {
        true => {
            for buffer in staging.buffers() {
                plan.builder.alternate(buffer);
            }
            let flags = shard.min(gemm::AllGatherMatmul::EAGER_CHUNKS);
            let first = plan.builder.slots(flags, |_| "arrived".into());
            (first, GatherProtocol::Eager { chunks })
        }
        false => {
            let ready = plan.builder.slot("ready");
            let done = plan.builder.slot("done");
            (ready, GatherProtocol::Rendezvous { done, pushed })
        }
    };
    let kernel = AllGatherMatmul {
        shape: plan.shape(),
        a: plan.a.elements,
        local_a: None,
        b: plan.b,
        b_transposed: plan.b_transposed(),
        bias: plan.bias,
        c: plan.c,
        activation: problem.activation,
        staging: staging.elements,
        scales: plan.kernel_scales(staging),
        ready,
        chunk_rows,
        protocol,
    };
    let pushes = (pushed > 0).then(|| {
        let pushes = plan.builder.fork();
        plan.push_first(pushes, staging, pushed * chunk_rows, ready);
        pushes
    });
    plan.builder.kernel(main, kernel);
    if let Some(pushes) = pushes {
        plan.builder.join(pushes);
    }
    plan.builder.finish()
}
