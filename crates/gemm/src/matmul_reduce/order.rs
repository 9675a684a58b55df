//! The order in which a rank takes the groups.

use std::ops::Range;

/// Some rows of a shard that share a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whose rows they are.
    pub owner: usize,
    /// Which of its groups.
    pub index: usize,
    /// Rows of C.
    pub rows: Range<usize>,
}

/// The groups of `group_rows` rows (of one, for 0) of all `shards`, of which rank r owns `shards[r]`, in the
/// order in which `rank` takes them. In round i it takes group i of each other rank, the next rank's first,
/// so that every rank pulls from a different one at a time. Its own groups come last, when their partials
/// have had time to arrive; but where `everyone` gets the result, which is as much to pull again, group i − 1
/// of its own follows in round i.
///
/// There is no circular wait: before a rank has multiplied group i for others, it waits only for partials of
/// groups up to i − 2.
pub fn order(
    shards: &[Range<usize>],
    rank: usize,
    group_rows: usize,
    everyone: bool,
) -> Vec<Group> {
    let world = shards.len();
    let most = shards.iter().map(Range::len).max().unwrap_or(0);
    let group_rows = group_rows.max(1);
    let rounds = most.div_ceil(group_rows);
    let group = |owner: usize, index: usize| {
        let shard = &shards[owner];
        let start = shard.start.saturating_add(index.saturating_mul(group_rows));
        let rows = start..start.saturating_add(group_rows).min(shard.end);
        (start < shard.end).then_some(Group { owner, index, rows })
    };
    let after = if everyone { 1 } else { rounds };
    let mut order = Vec::new();
    for round in 0..rounds + after {
        let peers = (1..world).map(|step| (rank + step) % world);
        order.extend(peers.filter_map(|peer| group(peer, round)));
        order.extend(round.checked_sub(after).and_then(|own| group(rank, own)));
    }
    order
}
