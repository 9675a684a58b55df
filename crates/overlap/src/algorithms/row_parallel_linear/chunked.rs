//! `rowParallelLinear`: chunk by chunk, the all-reduce of one overlapped with the GEMM of the next.

use crate::algorithms::reduction::{PartialGemm, Stored, transport};
use crate::algorithms::{Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Collective, Plan, Problem, chunks};
use warpweave_symm_mem::Priority;

/// What computes the all-reduces. Over symmetric memory C lies in it; for NCCL, C is plain memory without a
/// registered window.
const REDUCE: Parameter = Parameter {
    key: "reduce",
    summary: "what the all-reduces are: over symmetric memory C lies in it",
    values: Values::Choices(&["nccl", "symmetric"]),
};

/// Chunk i of the rows is on stream i mod p of a pool of p: its GEMM, then its all-reduce in place, which
/// overlaps with the GEMM of chunk i + 1. `chunks=1:streams=1` is the layer without chunks.
///
/// All ranks must enter their collectives in one order, so each collective waits by an event for the one
/// before it, on another stream. Hence the last comes after all others, and only its stream is joined.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "rowParallelLinear",
    Operation::RowParallelLinear,
    "chunks of rows on a pool of streams: GEMM, then all-reduce in place",
    build,
)
.parameters(&[
    Parameter {
        key: "chunks",
        summary: "chunks of the rows",
        values: Values::Counts(&[4, 1, 2, 8]),
    },
    Parameter {
        key: "streams",
        summary: "streams of the pool",
        values: Values::Counts(&[2, 1, 4]),
    },
    REDUCE,
])
// A stream without a chunk is not made.
.redundant(|options| options.count("streams") > options.count("chunks"))
.takes_e4m3();

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let transport = transport(options, REDUCE.key);
    let all = (transport.placement(), 0..problem.m);
    let place = (rank, world);
    let mut plan = PartialGemm::new(ALGORITHM.name, place, problem, Stored::Transposed, all);

    let parts: Vec<_> = chunks(0..problem.m, options.count("chunks")).collect();
    let streams = options.count("streams").min(parts.len());
    let pool = plan.builder.whole_pool(streams, Priority::Normal);
    let mut before = None;
    for (rows, &stream) in parts.into_iter().zip(pool.iter().cycle()) {
        let c = plan.own(plan.c, rows.clone());
        plan.gemm(stream, rows, c.clone());
        if let Some(before) = before.filter(|&before| before != stream) {
            plan.builder.order(before, stream);
        }
        plan.builder
            .collective(stream, Collective::AllReduce, c.clone(), c, transport);
        before = Some(stream);
    }
    if let Some(last) = before {
        plan.builder.join(last);
    }
    plan.builder.finish()
}
