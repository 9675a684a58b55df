//! What a collective does.

use std::fmt;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Every rank's `count` elements, by rank, on every rank.
    AllGather,
    /// The reduction over ranks of `world * count` elements, of which each rank gets its `count`.
    ReduceScatter,
    /// The reduction over ranks of `count` elements, on every rank.
    AllReduce,
    /// The root's `count` elements, on every rank.
    Broadcast,
    /// `count` elements from every rank to every rank.
    AllToAll,
    /// A barrier: no data.
    Barrier,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 6] = [
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllReduce,
        Operation::Broadcast,
        Operation::AllToAll,
        Operation::Barrier,
    ];

    /// The name in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::AllGather => "all-gather",
            Operation::ReduceScatter => "reduce-scatter",
            Operation::AllReduce => "all-reduce",
            Operation::Broadcast => "broadcast",
            Operation::AllToAll => "all-to-all",
            Operation::Barrier => "barrier",
        }
    }

    /// Whether elements are reduced.
    pub const fn reduces(self) -> bool {
        matches!(self, Operation::ReduceScatter | Operation::AllReduce)
    }

    /// Elements of the input and of the output of a call with `count`.
    pub const fn elements(self, count: usize, world: usize) -> (usize, usize) {
        match self {
            Operation::AllGather => (count, world * count),
            Operation::ReduceScatter => (world * count, count),
            Operation::AllReduce | Operation::Broadcast => (count, count),
            Operation::AllToAll => (world * count, world * count),
            Operation::Barrier => (0, 0),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
