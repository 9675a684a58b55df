//! The pipeline by owner: each rank reduces its rows, and receives partials while the others multiply.

use super::{CHUNKS, PartialGemm, STREAMS, Stored};
use crate::algorithms::Options;
use crate::algorithms::nodes::Nodes;
use crate::error::PlanError;
use crate::plan::{
    BufferId, Collective, Placement, Plan, Problem, Region, SlotId, StreamId, Transport, chunk,
    shard,
};
use std::ops::Range;
use warpweave_symm_mem::Priority;

/// Who gets the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithms) enum Reach {
    /// Each rank those of its rows: a reduce-scatter.
    Owner,
    /// Each rank all: an all-reduce.
    Everyone,
}

/// Multiplies one owner's rows after the other's, starting with rank + 1 and ending with its own, each in
/// `chunks` chunks round-robin on the `streams` streams. As soon as a chunk is multiplied it is pushed into
/// its owner's `staging`, by copy engine on one stream: every rank receives from one other at a time. The
/// caller's stream reduces this rank's chunks in the order of ranks, which is the same in every run. It reads
/// its own partial where the GEMM wrote it. After the last GEMM only the last chunk's reduction remains.
///
/// For [`Reach::Everyone`] the stream of the pushes then sends the results to all others, chunk by chunk. On
/// GPUs that is done by SMs, because C is an operand: a failed wait must be able to stop it. The partials lie
/// in C itself: an owner's result arrives only after the owner has received the partial that it overwrites.
///
/// **Nodes.** Owners are ranks of one node. What an owner has reduced NCCL then reduces over the ranks of the
/// same place in all nodes: by reduce-scatter, so that an owner has the rows of all of these ranks, or by
/// all-reduce. The chunks of all owners are multiplied one after the other, so that chunks cross the network
/// while later ones are multiplied.
///
/// `ready`: its n-th signal of a call says "my partial of the n-th chunk of your rows is in your staging".
/// `free`: "I have reduced your partials", a credit for the next call's pushes. Where everyone gets the
/// result, `reduced` takes its place: "my rows of your C are final".
pub(in crate::algorithms) fn by_owner(
    name: &str,
    options: &Options,
    (rank, world): (usize, usize),
    problem: &Problem,
    stored: Stored,
    reach: Reach,
) -> Result<Plan, PlanError> {
    let c = match reach {
        Reach::Owner => (Placement::Local, problem.shard(rank, world)),
        Reach::Everyone => (Placement::Symmetric, 0..problem.m),
    };
    let plan = PartialGemm::new(name, (rank, world), problem, stored, c);
    if world == 1 {
        return plan.alone();
    }
    let nodes = Nodes::new((rank, world), options);
    let mut plan = Pipeline::new(plan, nodes, options.count(CHUNKS.key), reach);
    let owners = (1..=nodes.size).map(|step| (nodes.place + step) % nodes.size);
    let mut parts: Vec<(usize, usize)> = owners
        .flat_map(|owner| (0..plan.chunks_of(owner)).map(move |chunk| (owner, chunk)))
        .collect();
    if nodes.count > 1 {
        parts.sort_by_key(|(_, chunk)| *chunk);
    }
    plan.wait_credits();
    let streams = options.count(STREAMS.key).min(parts.len());
    let streams = plan.gemm.builder.pool(streams, Priority::Normal);
    for ((owner, chunk), &stream) in parts.into_iter().zip(streams.iter().cycle()) {
        let chunk = plan.chunk(owner, chunk);
        let part = plan.part(owner, &chunk);
        plan.multiply(stream, &chunk, &part);
        if owner == nodes.place {
            plan.reduce(stream, &chunk, part);
        } else {
            plan.push(stream, owner, &chunk, part);
        }
    }
    plan.finish()
}

/// A chunk of an owner's rows.
struct Chunk {
    /// Rows of C; in a reduce-scatter those of the owner's place in each node.
    rows: Vec<Range<usize>>,
    /// Where they lie among all rows of the owner, contiguously.
    held: Range<usize>,
}

/// By which ranks reach each other in a node.
#[derive(Clone, Copy)]
struct Shared {
    /// Partials of this rank's rows: as many rows as the largest owner has for each peer.
    staging: BufferId,
    ready: SlotId,
    /// `free` or `reduced`.
    over: SlotId,
}

/// The plan under construction.
struct Pipeline {
    gemm: PartialGemm,
    nodes: Nodes,
    chunks: usize,
    reach: Reach,
    /// Where the rows of each owner begin among the partials, and where the last ones end.
    starts: Vec<usize>,
    /// The most rows of an owner.
    most: usize,
    /// This rank's partials, owner by owner.
    partial: BufferId,
    /// What the ranks of a node share, if there are several.
    shared: Option<Shared>,
    peers: Vec<usize>,
    /// The stream of the pushes, once there is something to push.
    pushes: Option<StreamId>,
    /// The stream of the collectives between nodes, where there are several.
    network: Option<StreamId>,
    /// The stream on which results go to the others.
    results: Option<StreamId>,
}

impl Pipeline {
    fn new(mut gemm: PartialGemm, nodes: Nodes, chunks: usize, reach: Reach) -> Self {
        let problem = gemm.problem;
        gemm.builder.nodes_of(nodes.size);
        let partial = match reach {
            Reach::Owner => gemm.buffer("partial", Placement::Local, problem.m),
            Reach::Everyone => gemm.c,
        };
        let mut end = 0;
        let starts = (0..nodes.size).map(|owner| {
            let rows = owned(&problem, &nodes, reach, owner);
            let start = end;
            end += rows.iter().map(Range::len).sum::<usize>();
            start
        });
        let starts: Vec<usize> = starts.chain([problem.m]).collect();
        // The first place has the most rows.
        let most = starts[1];
        let parts = most.saturating_mul(nodes.size - 1);
        Pipeline {
            starts,
            most,
            partial,
            shared: (nodes.size > 1).then(|| Shared {
                staging: gemm.buffer("staging", Placement::Symmetric, parts),
                ready: gemm.builder.slot("ready"),
                over: gemm.builder.slot(match reach {
                    Reach::Owner => "free",
                    Reach::Everyone => "reduced",
                }),
            }),
            peers: nodes.peers(),
            pushes: None,
            network: None,
            results: None,
            gemm,
            nodes,
            chunks,
            reach,
        }
    }

    /// Waits for the credits of this call's pushes, before any GEMM begins: a wait is a kernel. While a
    /// persistent GEMM runs it finds no SM, and GEMMs that begin while it runs get their SMs in pieces.
    fn wait_credits(&mut self) {
        let (Some(shared), Reach::Owner) = (self.shared, self.reach) else {
            return;
        };
        let owners = self.owners();
        if !owners.is_empty() {
            let main = StreamId::MAIN;
            self.gemm.builder.wait_credit(main, shared.over, owners);
        }
    }

    /// Whether a rank of this node has rows to reduce.
    fn owns(&self, rank: usize) -> bool {
        let place = rank - self.nodes.node * self.nodes.size;
        self.starts[place] < self.starts[place + 1]
    }

    /// The peers that have.
    fn owners(&self) -> Vec<usize> {
        let peers = self.peers.iter().copied();
        peers.filter(|&rank| self.owns(rank)).collect()
    }

    /// How many chunks an owner's rows have: those of its first shard, which is the longest.
    fn chunks_of(&self, owner: usize) -> usize {
        let shards = owned(&self.gemm.problem, &self.nodes, self.reach, owner);
        shards.first().map_or(0, |rows| self.chunks.min(rows.len()))
    }

    fn chunk(&self, owner: usize, index: usize) -> Chunk {
        let shards = owned(&self.gemm.problem, &self.nodes, self.reach, owner);
        let of_each = shards.iter().map(|rows| chunk(rows, index, self.chunks));
        let rows: Vec<Range<usize>> = of_each.collect();
        let before = shards
            .iter()
            .zip(&rows)
            .map(|(shard, rows)| rows.start - shard.start);
        let start = before.sum();
        Chunk {
            held: start..start + rows.iter().map(Range::len).sum::<usize>(),
            rows,
        }
    }

    /// Whether this rank's rows need no more than what its node reduces, and go where the caller has them.
    fn is_final(&self, owner: usize) -> bool {
        self.reach == Reach::Owner && owner == self.nodes.place && self.nodes.count == 1
    }

    /// Where this rank's partial of a chunk of `owner` goes; that of its own rows lies where the result will,
    /// if this node's ranks are all.
    fn part(&self, owner: usize, chunk: &Chunk) -> Region {
        if self.is_final(owner) {
            return self.gemm.own(self.gemm.c, chunk.held.clone());
        }
        let above = self.starts[owner];
        let Range { start, end } = chunk.held;
        self.gemm.own(self.partial, above + start..above + end)
    }

    /// Multiplies a chunk into `part`.
    fn multiply(&mut self, stream: StreamId, chunk: &Chunk, part: &Region) {
        let mut start = part.rows.start;
        for rows in &chunk.rows {
            let there = start..start + rows.len();
            start = there.end;
            let there = Region {
                rows: there,
                ..part.clone()
            };
            self.gemm.gemm(stream, rows.clone(), there);
        }
    }

    /// Where the partial of `source` of a chunk lies in the staging of `owner`, which has none of its own.
    /// Both are places in this node.
    fn staged(&self, shared: Shared, source: usize, owner: usize, chunk: &Chunk) -> Region {
        let above = (source - usize::from(source > owner)) * self.most;
        let Range { start, end } = chunk.held;
        let rank = self.nodes.node * self.nodes.size + owner;
        let rows = above + start..above + end;
        self.gemm.on(rank, shared.staging, rows)
    }

    /// Pushes a partial that is multiplied on `stream`.
    fn push(&mut self, stream: StreamId, owner: usize, chunk: &Chunk, part: Region) {
        let Some(shared) = self.shared else { return };
        let pushes = self.gemm.after(&mut self.pushes, stream);
        let there = self.staged(shared, self.nodes.place, owner, chunk);
        self.gemm.builder.put(pushes, part, there, shared.ready);
    }

    /// Reduces a chunk of this rank's rows, whose own partial is multiplied on `stream`, and sends the result
    /// on.
    fn reduce(&mut self, stream: StreamId, chunk: &Chunk, part: Region) {
        let (main, place) = (StreamId::MAIN, self.nodes.place);
        self.gemm.builder.order(stream, main);
        if let Some(shared) = self.shared {
            let parts = (0..self.nodes.size).map(|source| match source == place {
                true => part.clone(),
                false => self.staged(shared, source, place, chunk),
            });
            let parts = parts.collect();
            self.gemm
                .builder
                .wait(main, shared.ready, self.peers.clone())
                .reduce(main, parts, part.clone());
        }
        // Results must not keep later partials waiting for the network.
        let (reduced, results) = match self.nodes.count {
            1 => (main, &mut self.pushes),
            _ => {
                let reduced = self.reduce_over_nodes(chunk, &part);
                (reduced, &mut self.results)
            }
        };
        if self.reach == Reach::Everyone && !self.peers.is_empty() {
            let results = self.gemm.after(results, reduced);
            for &to in &self.peers {
                let there = self.gemm.on(to, self.gemm.c, part.rows.clone());
                self.gemm.builder.copy(results, part.clone(), there);
            }
        }
    }

    /// Reduces a chunk that this node has reduced over all nodes. Returns the stream on which it is final.
    fn reduce_over_nodes(&mut self, chunk: &Chunk, part: &Region) -> StreamId {
        let network = self.gemm.after(&mut self.network, StreamId::MAIN);
        let (collective, dst) = match self.reach {
            Reach::Everyone => (Collective::AllReduce, part.clone()),
            Reach::Owner => {
                let node = self.nodes.node;
                // Pieces differ by a row at most, the longer first: so do the shards of a collective.
                let mine = chunk.rows.get(node).cloned().unwrap_or(0..0);
                let first = self.gemm.rows_of(self.gemm.rank).start;
                let mine = match mine.is_empty() {
                    true => 0..0,
                    false => mine.start - first..mine.end - first,
                };
                (Collective::ReduceScatter, self.gemm.own(self.gemm.c, mine))
            }
        };
        let ranks = self.nodes.of_place(self.nodes.place).collect();
        let regions = (part.clone(), dst);
        self.gemm
            .builder
            .collective_of(network, collective, regions, ranks, Transport::Nccl);
        network
    }

    /// Signals that this rank's rows are reduced, and waits for what the others have pushed.
    fn finish(self) -> Result<Plan, PlanError> {
        let (owns, owners) = (self.owns(self.gemm.rank), self.owners());
        let mut builder = self.gemm.builder;
        let main = StreamId::MAIN;
        if let Some(shared) = self.shared.filter(|_| owns) {
            let stream = match self.reach {
                Reach::Everyone => self.results.or(self.pushes).unwrap_or(main),
                Reach::Owner => main,
            };
            builder.signal(stream, shared.over, self.peers);
        }
        for stream in [self.pushes, self.network, self.results]
            .into_iter()
            .flatten()
        {
            builder.join(stream);
        }
        if let Some(shared) = self.shared.filter(|_| self.reach == Reach::Everyone) {
            builder.wait(main, shared.over, owners);
        }
        builder.finish()
    }
}

/// The rows of C that the ranks of a place reduce in their node: for the owners of a reduce-scatter their
/// shards, node by node.
fn owned(problem: &Problem, nodes: &Nodes, reach: Reach, place: usize) -> Vec<Range<usize>> {
    match reach {
        Reach::Owner => {
            let world = nodes.size * nodes.count;
            let shards = nodes.of_place(place).map(|rank| problem.shard(rank, world));
            shards.collect()
        }
        Reach::Everyone => vec![shard(problem.m, place, nodes.size)],
    }
}
