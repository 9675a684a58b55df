//! `fusedAllGather`: one launch in which every rank fetches the shards of the others, or is given them, and multiplies what it has and
//! what comes. Copy engines may bring some of them.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::kernels::{AllGatherMatmul, GatherProtocol};
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, StreamId};
use warpweave_gemm as gemm;

/// One hand-written kernel whose blocks fetch the rows of the others by bulk copies beside their share of the product. The tiles
/// take this rank's rows first, then chunk after chunk of the others in the order of their arrival.
///
/// Where fewer than all `fetched` eighths of a shard are fetched, copy engines push the chunks before them, to each peer in one
/// piece: they bring more over a link than loads do, but only in large pieces, and what comes last must come in small ones.
///
/// With `protocol=eager` every rank writes its shard into the staging of all others as soon as its launch begins, 128 chunks with a word
/// (`arrived`) each at most, and nothing else is said: calls take two stagings in turn. On two H200s that is quicker where the product alone
/// takes less than about 30 µs.
///
/// Otherwise `ready`: "my A may be read", and where chunks are pushed "and those are in your staging". `done`: "I have read your A", wherever
/// it lay; the call ends only then, so that the next may push.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "fusedAllGather",
    operation: Operation::AllGatherMatmul,
    summary: "one SM90 kernel: each block fetches rows of the peers, or writes its own to them, while it multiplies what has arrived",
    needs: Capabilities::SM90,
    parameters: &[
        Parameter {
            key: "chunks",
            summary: "most chunks of a shard",
            values: Values::Counts(&[CHUNKS, 1, 2, 4, 16]),
        },
        Parameter {
            key: "fetched",
            summary: "eighths of a shard, at least, that are fetched and not pushed",
            values: Values::Counts(&[EIGHTHS, 3]),
        },
        Parameter {
            key: "protocol",
            summary: "whether peers fetch a shard once its owner says so, or the owner writes it to them unasked",
            values: Values::Words(&["rendezvous", "eager"]),
        },
    ],
    build: |options, rank, world, problem| build(&ALGORITHM, options, (rank, world), problem),
    rows: None,
    redundant: Some(|options| match options.word("protocol") {
        "eager" => options.count("chunks") != CHUNKS || options.count("fetched") != EIGHTHS,
        _ => {
            options.count("fetched") != EIGHTHS && pushed_of(options.count("chunks"), options) == 0
        }
    }),
};

const CHUNKS: usize = 8;

const EIGHTHS: usize = 8;

/// How many of so many chunks are pushed.
fn pushed_of(chunks: usize, options: &Options) -> usize {
    chunks * EIGHTHS.saturating_sub(options.count("fetched")) / EIGHTHS
}

/// The plan of a product, or of a linear layer: the same launch takes the weight as the operation has it stored, and adds a bias.
pub(in crate::algorithms) fn build(
    algorithm: &Algorithm,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let Algorithm {
        operation, name, ..
    } = *algorithm;
    let is_eager = options.word("protocol") == "eager";
    let placement = match is_eager {
        true => Placement::Local,
        false => Placement::Symmetric,
    };
    let mut plan = Operands::of(operation, name, (rank, world), problem, placement);
    let main = StreamId::MAIN;
    if world == 1 {
        plan.gemm_own(main);
        return plan.builder.finish();
    }
    let shard = problem.max_shard(world);
    let chunk_rows = match is_eager {
        true => gemm::AllGatherMatmul::eager_chunk_rows(shard),
        false => gemm::AllGatherMatmul::chunk_rows(shard, options.count("chunks")),
    };
    let chunks = shard.div_ceil(chunk_rows);
    let pushed = match is_eager {
        true => 0,
        false => pushed_of(chunks, options),
    };
    let staging = plan.staging(match is_eager || pushed > 0 {
        true => Placement::Symmetric,
        false => Placement::Local,
    });
    let (ready, protocol) = match is_eager {
        true => {
            plan.builder.alternate(staging);
            let first = plan.builder.slot("arrived");
            for _ in 1..chunks {
                plan.builder.slot("arrived");
            }
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
        a: plan.a,
        b: plan.b,
        b_transposed: plan.bias.is_some(),
        bias: plan.bias,
        c: plan.c,
        staging,
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
