//! The order in which a rank takes the groups.

use std::ops::Range;

/// Some rows of a shard, which are published together.
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
/// order in which `rank` takes them, in rounds: group i of each other rank, that of the next rank first, so
/// that at each time every rank pulls from another. Its own come last, when their parts have had time to
/// come; but where `everyone` gets the sums and there is as much to pull after them, group i − 1 of its own
/// follows in round i.
///
/// No rank waits for another that waits for it: before a rank has multiplied group i for others it waits for parts of groups
/// up to i − 2 only.
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
