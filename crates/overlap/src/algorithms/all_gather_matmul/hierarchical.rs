//! `hierarchical`: NCCL between nodes, copy engines inside them.

use super::buffers::Operands;
use crate::algorithms::{Algorithm, Capabilities, Options, Parameter, Values};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{
    BufferId, Collective, EventId, Placement, Plan, Problem, Region, Role, SlotId, StreamId,
    Transport, shard,
};
use std::ops::Range;

/// Symmetric memory inside a node, NCCL between nodes.
///
/// It runs where all ranks are on one host, which is divided into nodes; the exchange of descriptors refuses
/// a job on two hosts. For several hosts it can be checked and simulated.
///
/// Ranks with the same local rank all-gather their shards by NCCL, so that every shard crosses the network
/// once for each other node. Meanwhile each rank multiplies its own shard and pushes it to the ranks of its
/// node. It multiplies the shards from other nodes where they landed and pushes them on in the same way. All
/// pushes are on one stream, to the next rank of the node first.
///
/// **Nodes.** Ranks fill one node after the other, `ceil(world / nodes)` in each. If the last node would have
/// fewer, the nodes are split into smaller ones of g ranks, with g the greatest common divisor of that number
/// and the world. At worst g is 1: each rank is a node, and NCCL brings all shards.
///
/// **Uneven shards.** Ranks take part in a collective in the order of their ranks. Shards with one more row
/// come first, so the collective splits the rows of `landing` exactly as the shards are.
///
/// `landing` (local) has the shards of this local rank, in the order of the nodes; `staging` (symmetric) has
/// room for all rows of A.
///
/// `ready`: its n-th signal of a call says "the n-th of the shards that I push to you is in your staging".
/// `free`: "my GEMMs have read your rows", a credit for the next call's pushes.
pub const ALGORITHM: Algorithm = Algorithm {
    name: "hierarchical",
    operation: Operation::AllGatherMatmul,
    summary: "NCCL between nodes, pushes by copy engine inside them, GEMMs shard by shard",
    needs: Capabilities::NONE,
    parameters: &[Parameter {
        key: "nodes",
        summary: "nodes over which the ranks are spread",
        values: Values::Counts(&[2, 1, 4]),
    }],
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
    let nodes = Nodes::new((rank, world), options.count("nodes"));
    let mut plan = Operands::new(ALGORITHM.name, (rank, world), problem, Placement::Local);
    plan.builder.nodes_of(nodes.size);
    let main = StreamId::MAIN;
    let landing = Landing::gather(&mut plan, &nodes, problem);
    let node = Node::join(&mut plan, &nodes);

    // The shards of this rank's place, and of its node's, node by node.
    for hop in 0..nodes.count {
        let rows = plan.rows_of(nodes.rank(hop, 0));
        let src = match &landing {
            Some(landing) if hop > 0 => landing.shard(&plan, nodes.hop(hop)),
            _ => plan.own_shard(),
        };
        if let (1, Some(landing)) = (hop, &landing) {
            let readers = [Some(main), node.as_ref().map(|node| node.pushes)];
            for stream in readers.into_iter().flatten() {
                plan.builder.wait_event(stream, landing.landed);
            }
        }
        if let Some(node) = &node {
            node.push(&mut plan, &src, &rows, hop == 0);
        }
        plan.gemm_of(main, src, rows);
        if let Some(node) = &node {
            for step in 1..nodes.size {
                // Whoever has this rank as the first of its peers is the first to arrive here.
                let back = nodes.size - step;
                let rows = plan.rows_of(nodes.rank(hop, back));
                if !rows.is_empty() {
                    plan.builder.wait(main, node.ready, [nodes.rank(0, back)]);
                    plan.gemm_staged(main, node.staging, rows);
                }
            }
        }
    }
    if let Some(node) = node {
        plan.builder
            .signal(main, node.free, node.peers)
            .join(node.pushes);
    }
    plan.builder.finish()
}

/// Nodes of equal size, and where this rank stands.
struct Nodes {
    size: usize,
    count: usize,
    node: usize,
    place: usize,
}

impl Nodes {
    fn new((rank, world): (usize, usize), nodes: usize) -> Self {
        let size = gcd(world, world.div_ceil(nodes));
        Nodes {
            size,
            count: world / size,
            node: rank / size,
            place: rank % size,
        }
    }

    /// The node so many further, in a circle.
    fn hop(&self, nodes: usize) -> usize {
        (self.node + nodes) % self.count
    }

    /// The rank so many nodes and places further, both in circles.
    fn rank(&self, nodes: usize, places: usize) -> usize {
        self.hop(nodes) * self.size + (self.place + places) % self.size
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

/// The shards of this rank's place, gathered from all nodes.
struct Landing {
    buffer: BufferId,
    rows: usize,
    nodes: usize,
    landed: EventId,
}

impl Landing {
    /// Begins the all-gather on a stream of its own; nothing where there is one node, or no row at this
    /// place.
    fn gather(plan: &mut Operands, nodes: &Nodes, problem: &Problem) -> Option<Self> {
        let Problem { k, dtype, .. } = *problem;
        if nodes.count == 1 {
            return None;
        }
        let ranks_at = |place: usize| (0..nodes.count).map(move |node| node * nodes.size + place);
        let rows_at = |place: usize| ranks_at(place).map(|rank| plan.rows_of(rank).len()).sum();
        // The first place has the most rows, and never none.
        let (rows, most): (usize, usize) = (rows_at(nodes.place), rows_at(0));
        let local = Placement::Local;
        let shape = (most, k);
        let buffer = plan
            .builder
            .buffer("landing", local, Role::Staging, dtype, shape);
        if rows == 0 {
            return None;
        }
        let network = plan.builder.fork();
        let landed = plan.builder.event();
        let regions = (
            plan.own_shard(),
            plan.staged_rows(plan.rank, buffer, 0..rows),
        );
        let ranks = ranks_at(nodes.place).collect();
        plan.builder
            .collective_of(
                network,
                Collective::AllGather,
                regions,
                ranks,
                Transport::Nccl,
            )
            .record(network, landed);
        Some(Landing {
            buffer,
            rows,
            nodes: nodes.count,
            landed,
        })
    }

    /// What came from this node.
    fn shard(&self, plan: &Operands, node: usize) -> Region {
        plan.staged_rows(plan.rank, self.buffer, shard(self.rows, node, self.nodes))
    }
}

/// What this rank shares with the others of its node.
struct Node {
    peers: Vec<usize>,
    staging: BufferId,
    ready: SlotId,
    free: SlotId,
    pushes: StreamId,
}

impl Node {
    /// Nothing where this rank is alone.
    fn join(plan: &mut Operands, nodes: &Nodes) -> Option<Self> {
        let peers: Vec<usize> = (1..nodes.size).map(|step| nodes.rank(0, step)).collect();
        (!peers.is_empty()).then(|| Node {
            peers,
            staging: plan.staging(Placement::Symmetric),
            ready: plan.builder.slot("ready"),
            free: plan.builder.slot("free"),
            pushes: plan.builder.fork(),
        })
    }

    /// Pushes these rows of A to all peers, the first rows of a call with their credits.
    fn push(&self, plan: &mut Operands, src: &Region, rows: &Range<usize>, first: bool) {
        for &to in &self.peers {
            if first {
                plan.builder.wait_credit(self.pushes, self.free, [to]);
            }
            if !rows.is_empty() {
                let dst = plan.staged_rows(to, self.staging, rows.clone());
                plan.builder.put(self.pushes, src.clone(), dst, self.ready);
            }
        }
    }
}
