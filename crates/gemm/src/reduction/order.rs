//! The order in which a rank takes the groups.

use std::ops::Range;

use super::ReducingMatmul;

/// Some rows of a shard, which are announced together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whose rows they are.
    pub owner: usize,
    /// Which of its groups.
    pub index: usize,
    /// Rows of C.
    pub rows: Range<usize>,
}

impl ReducingMatmul {
    /// The groups in the order in which this rank takes them, in rounds: group i of each other rank, that of the next rank
    /// first, then group i − 1 of its own.
    ///
    /// So the parts of an own group had the time of the rest of a round to come, and are added soon after that; the links have
    /// work until nearly the end; and at each time every rank receives from one other. No rank waits for another that waits
    /// for it: before a rank sends its part of group i it waits for parts of groups up to i − 2 only.
    pub fn order(&self) -> Vec<Group> {
        let own = self.rank();
        let rounds = self.most_rows().div_ceil(self.group_rows);
        let mut order = Vec::new();
        for round in 0..=rounds {
            order.extend(self.peers().filter_map(|peer| self.group(peer, round)));
            order.extend(round.checked_sub(1).and_then(|last| self.group(own, last)));
        }
        order
    }

    fn group(&self, owner: usize, index: usize) -> Option<Group> {
        let shard = &self.shards[owner];
        let start = shard.start + index * self.group_rows;
        let rows = start..(start + self.group_rows).min(shard.end);
        (start < shard.end).then_some(Group { owner, index, rows })
    }
}
