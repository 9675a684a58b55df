//! `columnParallelLinear`: gathers chunk by chunk and multiplies each chunk on a pool of streams.

use super::chunk::{Arrangement, Chunk, Gemm, Sharding, deal};
use crate::algorithms::all_gather_matmul::buffers::{Operands, RowBuffers, Rows};
use crate::algorithms::{ALL_SCALES, Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Placement, Plan, Problem, Provider, Scaling, SlotId, StreamId, Transport};
use std::ops::Range;
use warpweave_symm_mem::Priority;

/// nvFuser's stream-parallel all-gather and linear layer: chunk s is gathered and multiplied on stream s mod
/// p of a pool, so that the gather of some chunks overlaps with the GEMMs of others. Events order the
/// streams; no host waits.
///
/// **Sharding.** nvFuser's benchmark deals A as \[S, D, M / (S · D), K\] to D ranks, which is `cyclic`: rank
/// r holds the r-th part of each of S chunks, the rows of a gathered chunk are contiguous, and one GEMM
/// multiplies them. With `blocked`, rank r holds block r of A and chunk s is the s-th part of every block.
/// That takes a GEMM for each piece, or a batch.
///
/// **GEMMs.** The GEMMs of a batch have one stride in the staging and one in C. Pushed pieces have the same
/// stride in both, because the staging is then laid out as A is; pieces gathered by a collective are
/// contiguous in the staging. Where M is not divisible by the world size, the blocks with one more row and
/// the others are a batch each. Pieces that are contiguous in C too (all of a cyclic chunk, or whole blocks)
/// are one GEMM either way.
///
/// **Gather.** `nccl` and `symmetric`: one all-gather per chunk, ordered among themselves by events; pieces
/// may differ by a row just as a collective's shards do. Over symmetric memory the staging lies in it.
/// `push`: one stream puts the pieces of chunk after chunk into the staging of all peers, to the next rank
/// first; this rank's own piece is copied on the stream of its GEMM.
///
/// `ready i` (push): its n-th signal of a call says "my piece of the n-th chunk of stream i is in your
/// staging". `free` (push): "my GEMMs have read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "columnParallelLinear",
    Operation::ColumnParallelLinear,
    "gather in chunks over a pool of streams, GEMMs after each",
    build,
)
.parameters(&[
    Parameter {
        key: "chunks",
        summary: "chunks of A",
        values: Values::Counts(&[4, 1, 2, 8]),
    },
    Parameter {
        key: "streams",
        summary: "streams of the pool",
        values: Values::Counts(&[2, 1, 4]),
    },
    Parameter {
        key: "sharding",
        summary: "a block of rows for each rank, or a part of each chunk",
        values: Values::Choices(&["blocked", "cyclic"]),
    },
    Parameter {
        key: "gemms",
        summary: "GEMMs of the blocks' pieces of a chunk one by one, \
                  or in a batch where they lie equally far apart",
        values: Values::Choices(&["separate", "batched"]),
    },
    Parameter {
        key: "gather",
        summary: "by NCCL, by collectives over symmetric memory, or by copy engine",
        values: Values::Choices(&["nccl", "symmetric", "push"]),
    },
])
.rows(rows)
.redundant(redundant)
.batch_invariant(|_| true)
.takes_scales(scalings)
.has_activation(|options| options.choice("gemms") != "batched");

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let mut layer = Layer::new(options, (rank, world), problem);
    match options.choice("gather") {
        _ if world == 1 => layer.plan.gemm_own(StreamId::MAIN),
        "push" => layer.push(),
        "symmetric" => layer.collect(Transport::SymmetricMemory),
        _ => layer.collect(Transport::Nccl),
    }
    layer.plan.builder.finish()
}

/// One chunk is the whole blocks, whichever the sharding; a chunk of one GEMM is no batch; a stream without a
/// chunk is not created.
fn redundant(options: &Options) -> bool {
    let chunks = options.count("chunks");
    let cyclic = options.choice("sharding") == "cyclic";
    let batched = options.choice("gemms") == "batched";
    options.count("streams") > chunks || chunks == 1 && (cyclic || batched) || cyclic && batched
}

/// The GEMMs of a batch have no scales.
fn scalings(options: &Options) -> &'static [Scaling] {
    match options.choice("gemms") {
        "batched" => &[],
        _ => ALL_SCALES,
    }
}

/// The rows of A that a rank holds.
fn rows(options: &Options, rank: usize, world: usize, problem: &Problem) -> Vec<Range<usize>> {
    let chunks = chunks(options, world, problem).into_iter();
    chunks
        .filter_map(|chunk| chunk.pieces.into_iter().nth(rank))
        .map(|piece| piece.rows)
        .filter(|rows| !rows.is_empty())
        .collect()
}

fn chunks(options: &Options, world: usize, problem: &Problem) -> Vec<Chunk> {
    let sharding = match options.choice("sharding") {
        "cyclic" => Sharding::Cyclic,
        _ => Sharding::Blocked,
    };
    let layout = match options.choice("gather") {
        "push" => Arrangement::AsInA,
        _ => Arrangement::ByChunk,
    };
    deal(problem.m, world, options.count("chunks"), sharding, layout)
}

/// A plan under construction.
struct Layer {
    plan: Operands,
    rank: usize,
    chunks: Vec<Chunk>,
    streams: usize,
    batched: bool,
}

impl Layer {
    fn new(options: &Options, (rank, world): (usize, usize), problem: &Problem) -> Self {
        let chunks = chunks(options, world, problem);
        // The first rank has the most.
        let held = chunks.iter().filter_map(|chunk| chunk.pieces.first());
        let a = (
            Placement::Local,
            held.map(|piece| piece.held.len()).sum::<usize>(),
        );
        let (name, operation) = (ALGORITHM.name, ALGORITHM.operation);
        Layer {
            plan: Operands::of(operation, name, (rank, world), problem, a),
            rank,
            streams: options.count("streams").min(chunks.len()),
            chunks,
            batched: options.choice("gemms") == "batched",
        }
    }

    /// Gathers by collectives.
    fn collect(&mut self, transport: Transport) {
        let staging = self.plan.staging(transport.placement());
        let chunks = std::mem::take(&mut self.chunks);
        // The others begin after the collective before theirs.
        let mut pool = match self.streams {
            1 => vec![StreamId::MAIN],
            _ => vec![self.plan.builder.fork_with(Priority::Normal)],
        };
        for (index, chunk) in chunks.iter().enumerate() {
            let stream = pool[index % self.streams];
            let src = self.held(chunk);
            let dst = self.plan.rows_in(self.rank, staging, chunk.staged());
            self.plan.gather(stream, &src, &dst, transport);
            // The next collective begins after this one, not after its GEMMs.
            if self.streams > 1 && index + 1 < chunks.len() {
                match pool.get((index + 1) % self.streams) {
                    Some(&next) => {
                        self.plan.builder.order(stream, next);
                    }
                    None => {
                        let next = self.plan.builder.fork_from(stream, Priority::Normal);
                        pool.push(next);
                    }
                }
            }
            self.multiply(stream, staging, chunk);
        }
        for stream in pool {
            self.plan.builder.join(stream);
        }
    }

    /// Gathers by copy engine.
    fn push(&mut self) {
        let staging = self.plan.staging(Placement::Symmetric);
        let (rank, streams) = (self.rank, self.streams);
        let chunks = std::mem::take(&mut self.chunks);
        let ready: Vec<SlotId> = (0..streams)
            .map(|stream| self.plan.builder.slot(format!("ready {stream}")))
            .collect();
        let free = self.plan.builder.slot("free");
        let peers = self.plan.builder.peers();
        let gives = |rank: usize, chunk: &Chunk| !chunk.pieces[rank].rows.is_empty();
        let gives_any = |rank: usize| chunks.iter().any(|chunk| gives(rank, chunk));

        let pushes = gives_any(rank).then(|| self.plan.builder.fork());
        if let Some(pushes) = pushes {
            self.plan.builder.wait_credit(pushes, free, peers.clone());
            for (index, chunk) in chunks.iter().enumerate() {
                for &to in peers.iter().filter(|_| gives(rank, chunk)) {
                    let (src, dst) = (self.held(chunk), self.place(to, staging, chunk));
                    self.plan.put(pushes, &src, &dst, ready[index % streams]);
                }
            }
        }
        let pool = self.plan.builder.whole_pool(streams, Priority::Normal);
        for (index, chunk) in chunks.iter().enumerate() {
            let stream = pool[index % streams];
            let (src, dst) = (self.held(chunk), self.place(rank, staging, chunk));
            let from = peers.iter().copied().filter(|&peer| gives(peer, chunk));
            self.plan.copy(stream, &src, &dst);
            self.plan.builder.wait(stream, ready[index % streams], from);
            self.multiply(stream, staging, chunk);
        }
        let builder = &mut self.plan.builder;
        for stream in pool {
            builder.join(stream);
        }
        let givers = peers.iter().copied().filter(|&peer| gives_any(peer));
        builder.signal(StreamId::MAIN, free, givers);
        if let Some(pushes) = pushes {
            builder.join(pushes);
        }
    }

    /// This rank's piece of a chunk.
    fn held(&self, chunk: &Chunk) -> Rows {
        let held = chunk.pieces[self.rank].held.clone();
        self.plan.rows_in(self.rank, self.plan.a, held)
    }

    /// Where this rank's piece of a chunk lies in the staging of `rank`.
    fn place(&self, rank: usize, staging: RowBuffers, chunk: &Chunk) -> Rows {
        let staged = chunk.pieces[self.rank].staged.clone();
        self.plan.rows_in(rank, staging, staged)
    }

    fn multiply(&mut self, stream: StreamId, staging: RowBuffers, chunk: &Chunk) {
        for Gemm {
            staged,
            rows,
            batch,
        } in chunk.gemms(self.batched)
        {
            let src = self.plan.rows_in(self.rank, staging, staged);
            self.plan
                .gemms(Provider::CublasLt, stream, src, (rows, batch));
        }
    }
}
