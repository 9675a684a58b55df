//! `hierarchical`: NCCL between nodes, copy engines inside them.

use super::buffers::{Operands, RowBuffers, Rows};
use crate::algorithms::nodes::{NODES, Nodes};
use crate::algorithms::{Algorithm, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{
    Collective, EventId, Placement, Plan, Problem, SlotId, StreamId, Transport, chunk, shard,
};
use std::ops::Range;

/// Symmetric memory inside a node, NCCL between nodes.
///
/// Ranks with the same local rank all-gather their shards by NCCL, chunk by chunk, so that every shard
/// crosses the network once for each other node. Meanwhile each rank multiplies its own shard and pushes it
/// to the ranks of its node. It multiplies the chunks from other nodes where they landed and pushes them on
/// in the same way. All pushes are on one stream, to the next rank of the node first.
///
/// **Uneven shards.** Ranks take part in a collective in the order of their ranks. Shards with one more row
/// come first, and so do chunks, so the collective splits the rows of a chunk of `landing` exactly as the
/// shards' chunks are.
///
/// `landing` (local) has the shards of this local rank, chunk by chunk, in the order of the nodes; `staging`
/// (symmetric) has room for all rows of A.
///
/// `ready`: its n-th signal of a call says "the n-th of the pieces that I push to you is in your staging".
/// `free`: "my GEMMs have read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm::new(
    "hierarchical",
    Operation::AllGatherMatmul,
    "NCCL between nodes, pushes by copy engine inside them, GEMMs shard by shard",
    build,
)
.parameters(&[
    Parameter {
        values: Values::Counts(&[2, 1, 4]),
        ..NODES
    },
    CHUNKS,
])
.redundant(is_redundant)
.takes_e4m3();

/// In how many pieces a shard crosses the network.
const CHUNKS: Parameter = Parameter {
    key: "chunks",
    summary: "chunks in which a shard crosses the network",
    values: Values::Counts(&[1, 2, 4]),
};

/// In one node nothing crosses the network.
fn is_redundant(options: &Options) -> bool {
    options.count(NODES.key) == 1 && options.count(CHUNKS.key) > 1
}

fn build(
    options: &Options,
    rank: usize,
    world: usize,
    problem: &Problem,
) -> Result<Plan, PlanError> {
    over_nodes(
        Operation::AllGatherMatmul,
        ALGORITHM.name,
        options,
        (rank, world),
        problem,
    )
}

/// The plan of an operation that gathers A.
pub(in crate::algorithms) fn over_nodes(
    operation: Operation,
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
) -> Result<Plan, PlanError> {
    let nodes = Nodes::new((rank, world), options);
    let a = (Placement::Local, problem.max_shard(world));
    let mut plan = Operands::of(operation, name, (rank, world), problem, a);
    plan.builder.nodes_of(nodes.size);
    let main = StreamId::MAIN;
    let landing = Landing::gather(&mut plan, &nodes, options.count(CHUNKS.key));
    let node = Node::join(&mut plan, &nodes);

    let own = Piece {
        src: plan.own_shard(),
        hop: 0,
        chunk: (0, 1),
    };
    multiply(&mut plan, &nodes, node.as_ref(), &own);
    for index in 0..landing.count {
        let landed = landing.chunks.get(index).map(|chunk| chunk.landed);
        let readers = [Some(main), node.as_ref().map(|node| node.pushes)];
        for (stream, landed) in readers.into_iter().flatten().zip(landed.iter().cycle()) {
            plan.builder.wait_event(stream, *landed);
        }
        for hop in 1..nodes.count {
            let piece = Piece {
                src: landing.piece(&plan, index, (nodes.hop(hop), nodes.count)),
                hop,
                chunk: (index, landing.count),
            };
            multiply(&mut plan, &nodes, node.as_ref(), &piece);
        }
    }
    if let Some(node) = node {
        plan.builder
            .signal(main, node.free, nodes.peers())
            .join(node.pushes);
    }
    plan.builder.finish()
}

/// Rows of the shard of this rank's place in the node so many hops further.
struct Piece {
    src: Rows,
    hop: usize,
    /// Which chunk of how many.
    chunk: (usize, usize),
}

impl Piece {
    /// The same chunk of the shard of the rank so many places further.
    fn rows(&self, plan: &Operands, nodes: &Nodes, places: usize) -> Range<usize> {
        let (index, count) = self.chunk;
        chunk(&plan.rows_of(nodes.rank(self.hop, places)), index, count)
    }
}

/// Pushes a piece to the node's other ranks, multiplies it, and then what they push of the same hop and
/// chunk.
fn multiply(plan: &mut Operands, nodes: &Nodes, node: Option<&Node>, piece: &Piece) {
    let main = StreamId::MAIN;
    let rows = piece.rows(plan, nodes, 0);
    if let Some(node) = node {
        node.push(plan, nodes, (&piece.src, &rows), piece.hop == 0);
    }
    plan.gemm_of(main, piece.src.clone(), rows);
    let Some(node) = node else { return };
    for step in 1..nodes.size {
        // Whoever has this rank as the first of its peers is the first to arrive here.
        let back = nodes.size - step;
        let rows = piece.rows(plan, nodes, back);
        if !rows.is_empty() {
            plan.builder.wait(main, node.ready, [nodes.rank(0, back)]);
            plan.gemm_staged(main, node.staging, rows);
        }
    }
}

/// The shards of this rank's place, gathered from all nodes chunk by chunk.
struct Landing {
    buffers: RowBuffers,
    /// The most chunks of any shard, as a short one has no more than rows; none where there is one node.
    count: usize,
    /// Those of this place.
    chunks: Vec<Chunk>,
}

/// A chunk of each of these shards.
struct Chunk {
    /// Where it lies in the buffer, node by node.
    rows: Range<usize>,
    landed: EventId,
}

impl Landing {
    /// Begins the all-gathers, on a stream of their own.
    fn gather(plan: &mut Operands, nodes: &Nodes, count: usize) -> Self {
        let of_nodes = |place: usize| nodes.of_place(place).map(|rank| plan.rows_of(rank));
        // The first place has the most rows.
        let most = of_nodes(0).map(|rows| rows.len()).sum();
        let count = match nodes.count {
            1 => 0,
            _ => count.min(plan.rows_of(0).len()),
        };
        // Of a place the first node's shard is the longest.
        let longest = count.min(plan.rows_of(nodes.place).len());
        let sizes: Vec<usize> = (0..longest)
            .map(|index| {
                let parts = of_nodes(nodes.place).map(|rows| chunk(&rows, index, count));
                parts.map(|part| part.len()).sum()
            })
            .collect();
        let names = ["landing", "landed_scales"];
        let mut landing = Landing {
            buffers: match nodes.count {
                1 => plan.a,
                _ => plan.row_buffers(names, Placement::Local, most),
            },
            count,
            chunks: Vec::new(),
        };
        let network = (!sizes.is_empty()).then(|| plan.builder.fork());
        let mut start = 0;
        for ((index, size), network) in sizes.into_iter().enumerate().zip(network.iter().cycle()) {
            let rows = start..start + size;
            let own = plan.own_chunk(count, index);
            let there = plan.rows_in(plan.rank, landing.buffers, rows.clone());
            for (own, there) in own.regions().zip(there.regions()) {
                let ranks = nodes.of_place(nodes.place).collect();
                let operands = (own.clone(), there.clone());
                let (gather, nccl) = (Collective::AllGather, Transport::Nccl);
                plan.builder
                    .collective_of(*network, gather, operands, ranks, nccl);
            }
            let landed = plan.builder.event();
            plan.builder.record(*network, landed);
            start = rows.end;
            landing.chunks.push(Chunk { rows, landed });
        }
        landing
    }

    /// What came of a chunk from one of so many nodes; nothing where this place has no such chunk.
    fn piece(&self, plan: &Operands, index: usize, (node, nodes): (usize, usize)) -> Rows {
        let rows = match self.chunks.get(index) {
            None => 0..0,
            Some(chunk) => {
                let Range { start, end } = shard(chunk.rows.len(), node, nodes);
                chunk.rows.start + start..chunk.rows.start + end
            }
        };
        plan.rows_in(plan.rank, self.buffers, rows)
    }
}

/// What this rank shares with the others of its node.
struct Node {
    staging: RowBuffers,
    ready: SlotId,
    free: SlotId,
    pushes: StreamId,
}

impl Node {
    /// Nothing where this rank is alone.
    fn join(plan: &mut Operands, nodes: &Nodes) -> Option<Self> {
        (nodes.size > 1).then(|| Node {
            staging: plan.staging(Placement::Symmetric),
            ready: plan.builder.slot("ready"),
            free: plan.builder.slot("free"),
            pushes: plan.builder.fork(),
        })
    }

    /// Pushes these rows of A to all peers, the first rows of a call with their credits.
    fn push(
        &self,
        plan: &mut Operands,
        nodes: &Nodes,
        (src, rows): (&Rows, &Range<usize>),
        first: bool,
    ) {
        for to in nodes.peers() {
            if first {
                plan.builder.wait_credit(self.pushes, self.free, [to]);
            }
            if !rows.is_empty() {
                let dst = plan.rows_in(to, self.staging, rows.clone());
                plan.put(self.pushes, src, &dst, self.ready);
            }
        }
    }
}
