//! Ranks in nodes of one size: memory is shared inside a node, and NCCL connects ranks of one place.

use super::{Options, Parameter, Values};

/// The nodes over which the ranks are spread, one by default.
pub(super) const NODES: Parameter = Parameter {
    key: "nodes",
    summary: "nodes over which the ranks are spread",
    values: Values::Counts(&[1, 2]),
};

/// Nodes of equal size, and where a rank stands.
///
/// Ranks fill one node after the other, `ceil(world / nodes)` in each. If the last node would have fewer, the
/// nodes are split into smaller ones of g ranks, with g the greatest common divisor of that number and the
/// world. At worst g is 1: each rank is a node, and NCCL moves everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nodes {
    /// Ranks of a node.
    pub(super) size: usize,
    /// Number of nodes.
    pub(super) count: usize,
    /// This rank's node.
    pub(super) node: usize,
    /// Its place there.
    pub(super) place: usize,
}

impl Nodes {
    /// As many as the parameter [`NODES`] says.
    pub(super) fn new((rank, world): (usize, usize), options: &Options) -> Self {
        let size = gcd(world, world.div_ceil(options.count(NODES.key)));
        Nodes {
            size,
            count: world / size,
            node: rank / size,
            place: rank % size,
        }
    }

    /// The node so many further, in a circle.
    pub(super) fn hop(&self, nodes: usize) -> usize {
        (self.node + nodes) % self.count
    }

    /// The rank so many nodes and places further, both in circles.
    pub(super) fn rank(&self, nodes: usize, places: usize) -> usize {
        self.hop(nodes) * self.size + (self.place + places) % self.size
    }

    /// The other ranks of the node, the next one first.
    pub(super) fn peers(&self) -> Vec<usize> {
        (1..self.size).map(|step| self.rank(0, step)).collect()
    }

    /// The ranks of a place, node by node: those that a collective between nodes connects.
    pub(super) fn of_place(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let Nodes { size, count, .. } = *self;
        (0..count).map(move |node| node * size + place)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
