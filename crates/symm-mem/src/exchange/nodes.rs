//! Which ranks of a group share memory.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};

/// The nodes of a group: sets of ranks whose memory reaches each other. They are on one host, or on several
/// of an NVLink domain, between which no descriptors are passed. Numbered in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The node of each rank.
    of: Vec<usize>,
}

impl Nodes {
    /// All of `world` ranks in one node.
    pub fn one(world: usize) -> Self {
        Self { of: vec![0; world] }
    }

    /// Ranks with the same identity share a node.
    pub fn by_identity<T: PartialEq>(identities: &[T]) -> Self {
        let mut firsts: Vec<&T> = Vec::new();
        let of = identities.iter().map(|identity| {
            let known = firsts.iter().position(|first| *first == identity);
            known.unwrap_or_else(|| {
                firsts.push(identity);
                firsts.len() - 1
            })
        });
        Self { of: of.collect() }
    }

    /// The nodes of some of the ranks, numbered anew.
    #[must_use]
    pub fn of_ranks(&self, ranks: &[usize]) -> Self {
        let nodes: Vec<_> = ranks.iter().map(|&rank| self.of.get(rank)).collect();
        Self::by_identity(&nodes)
    }

    /// Number of nodes.
    pub fn count(&self) -> usize {
        self.of.iter().max().map_or(0, |last| last + 1)
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.of.len()
    }

    /// The node of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn node_of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// The ranks of a node, in ascending order.
    pub fn ranks_of(&self, node: usize) -> Vec<usize> {
        let ranks = (0..self.of.len()).filter(|&rank| self.of[rank] == node);
        ranks.collect()
    }

    /// Whether all of `ranks` are in one node.
    pub fn share_one(&self, ranks: impl IntoIterator<Item = usize>) -> bool {
        let mut nodes = ranks.into_iter().map(|rank| self.of[rank]);
        let first = nodes.next();
        nodes.all(|node| Some(node) == first)
    }

    /// How many consecutive ranks fill each node, where all nodes have as many: what plans over nodes need.
    pub fn even_size(&self) -> Option<usize> {
        let size = self.of.len() / self.count().max(1);
        let even = (0..self.of.len()).all(|rank| self.of[rank] == rank / size);
        (size > 0 && even).then_some(size)
    }

    /// That these ranks share memory, which `what` needs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] naming two ranks that do not.
    pub fn require_one(&self, ranks: Range<usize>, what: &str) -> Result<()> {
        let first = ranks.start;
        let other = ranks.clone().find(|&rank| self.of[rank] != self.of[first]);
        other.map_or(Ok(()), |other| {
            Err(Error::Unavailable {
                what: format!("{what} of ranks {} to {}", first, ranks.end - 1),
                why: format!(
                    "rank {first} is in node {} and rank {other} in node {}, and memory is shared within a \
                     node only; use a plan over nodes, or NCCL",
                    self.of[first], self.of[other]
                ),
            })
        })
    }
}

/// `2 nodes: ranks [0, 1], [2, 3]`.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = (0..self.count())
            .map(|node| format!("{:?}", self.ranks_of(node)))
            .collect();
        write!(f, "{} nodes: ranks {}", self.count(), ranks.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_identity_share_a_node() {
        let nodes = Nodes::by_identity(&["a", "a", "b", "b"]);
        assert_eq!((nodes.count(), nodes.even_size()), (2, Some(2)));
        assert_eq!(nodes.ranks_of(1), [2, 3]);
        assert_eq!(nodes.to_string(), "2 nodes: ranks [0, 1], [2, 3]");
        assert!(nodes.share_one([2, 3]) && !nodes.share_one([1, 2]) && nodes.share_one([]));
        let across = nodes.of_ranks(&[3, 0]);
        assert_eq!((across.node_of(0), across.node_of(1)), (0, 1));
        assert_eq!(nodes.of_ranks(&[2, 3]), Nodes::one(2));
    }

    #[test]
    fn plans_need_nodes_of_as_many_consecutive_ranks() {
        assert_eq!(Nodes::by_identity(&["a", "b", "a", "b"]).even_size(), None);
        assert_eq!(Nodes::by_identity(&["a", "a", "b"]).even_size(), None);
        assert_eq!(Nodes::by_identity(&["a", "b", "c"]).even_size(), Some(1));
        assert_eq!(Nodes::one(5).even_size(), Some(5));
    }

    #[test]
    fn memory_of_two_nodes_is_refused_by_name() {
        let nodes = Nodes::by_identity(&["a", "a", "b", "b"]);
        assert!(nodes.require_one(2..4, "symmetric memory").is_ok());
        let error = nodes.require_one(0..4, "symmetric memory").unwrap_err();
        assert!(error.is_unavailable());
        let error = error.to_string();
        assert!(
            error.contains("rank 0 is in node 0 and rank 2 in node 1"),
            "{error}"
        );
    }
}
