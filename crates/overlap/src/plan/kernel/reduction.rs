//! The product whose K is sharded, with the sums of all ranks' parts in the same launch.

use super::{BufferId, KernelShape, SlotId, shard};
use crate::plan::{Effect, Region};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_gemm::reduction::{Group, order};

/// The operands of [`Kernel::ReducingMatmul`](super::Kernel::ReducingMatmul).
///
/// K is sharded, so that each rank has a part of all of C; the rows of C are sharded, and each rank sums its own. A shard is
/// cut into groups of rows from its first on. Each group is announced by signals in slots of its own, and has lanes of its
/// own: the tiles of different groups are in no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduction {
    /// Sizes of the whole product.
    pub shape: KernelShape,
    /// Local: this rank's columns of A.
    pub a: BufferId,
    /// Local: this rank's rows of B.
    pub b: BufferId,
    /// Whether `b` is stored transposed.
    pub b_transposed: bool,
    /// Local with this rank's rows of C; or, where everyone gets the sums, symmetric with all rows.
    pub c: BufferId,
    /// Symmetric: this rank's parts of the rows of each other rank, in order, with as many rows as the largest shard has.
    pub staging: BufferId,
    /// Local: of the same size, for the parts that this rank fetches.
    pub fetched: BufferId,
    /// First of `groups` slots: "my part of the group may be fetched".
    pub ready: SlotId,
    /// First of `groups` slots: "I have read your part of the group", a credit for the next call; or, where everyone gets the
    /// sums, "the group is summed in your C".
    pub over: SlotId,
    /// Rows of a group, but the last of a shard.
    pub rows: usize,
    /// Groups of the largest shard.
    pub groups: usize,
    /// Whether every rank gets the sums.
    pub everyone: bool,
}

impl Reduction {
    /// The rows of C that each rank owns.
    pub fn shards(&self, world: usize) -> Vec<Range<usize>> {
        (0..world)
            .map(|rank| shard(self.shape.m, rank, world))
            .collect()
    }

    /// The groups in the order in which `rank` takes them.
    pub fn order(&self, rank: usize, world: usize) -> Vec<Group> {
        order(&self.shards(world), rank, self.rows.max(1))
    }

    /// Columns of A that `rank` has.
    pub fn depth(&self, rank: usize, world: usize) -> usize {
        shard(self.shape.k, rank, world).len()
    }

    pub(super) fn slots(&self) -> Vec<SlotId> {
        let of = |first: SlotId| (0..self.groups).map(move |group| slot(first, group));
        of(self.ready).chain(of(self.over)).collect()
    }

    /// The lanes of each group, in the order in which the kernel takes them: of another rank's it is one, of an own one its
    /// product has a lane and its sum another, since its parts are fetched meanwhile.
    pub(super) fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let place = Place {
            reduction: self,
            rank,
            world,
        };
        let order = self.order(rank, world).into_iter();
        order
            .flat_map(|group| match group.owner == rank {
                true => vec![place.multiply(&group), place.sum(&group)],
                false => vec![place.leave(&group)],
            })
            .collect()
    }
}

/// The slot of a group.
fn slot(first: SlotId, group: usize) -> SlotId {
    SlotId(first.0 + group)
}

/// The place of `one` among all ranks but `without`.
fn place_of(one: usize, without: usize) -> usize {
    one - usize::from(one > without)
}

/// One rank's launch.
struct Place<'a> {
    reduction: &'a Reduction,
    rank: usize,
    world: usize,
}

impl Place<'_> {
    /// Another rank's group: the product, which is left where its owner fetches it. A call ends behind the sums, where all get
    /// them: that is the credit then.
    fn leave(&self, group: &Group) -> Vec<Effect> {
        let (owner, everyone) = (group.owner, self.reduction.everyone);
        let over = Effect::Wait {
            slot: slot(self.reduction.over, group.index),
            from: vec![owner],
            lag: u32::from(!everyone),
        };
        let mut lane = self.multiply(group);
        lane.extend([
            Effect::Write(self.staged(self.rank, group)),
            Effect::Signal {
                slot: slot(self.reduction.ready, group.index),
                to: vec![owner],
            },
        ]);
        let at = if everyone { lane.len() } else { 0 };
        lane.insert(at, over);
        lane
    }

    /// The sum of an own group: the parts of the others are fetched, that of the rank before first, which is the first to have
    /// its own. The product is there before anything is added.
    fn sum(&self, group: &Group) -> Vec<Effect> {
        let peers: Vec<usize> = (1..self.world)
            .map(|step| (self.rank + step) % self.world)
            .collect();
        let fetch = |&peer: &usize| {
            [
                Effect::Wait {
                    slot: slot(self.reduction.ready, group.index),
                    from: vec![peer],
                    lag: 0,
                },
                Effect::Read(self.staged(peer, group)),
                Effect::Write(self.fetched(peer, group)),
            ]
        };
        let mut lane: Vec<Effect> = peers.iter().rev().flat_map(fetch).collect();
        let parts = (0..self.world).filter(|&source| source != self.rank);
        lane.extend(parts.map(|source| Effect::Read(self.fetched(source, group))));
        let shard = shard(self.reduction.shape.m, self.rank, self.world);
        let mut write = |rank, rows| {
            let c = self.all_columns(rank, self.reduction.c, rows);
            lane.push(Effect::Write(c));
        };
        match self.reduction.everyone {
            true => {
                write(self.rank, group.rows.clone());
                peers
                    .iter()
                    .for_each(|&peer| write(peer, group.rows.clone()));
            }
            false => write(
                self.rank,
                group.rows.start - shard.start..group.rows.end - shard.start,
            ),
        }
        lane.push(Effect::Signal {
            slot: slot(self.reduction.over, group.index),
            to: peers,
        });
        lane
    }

    fn multiply(&self, group: &Group) -> Vec<Effect> {
        let Reduction {
            a,
            b,
            b_transposed,
            shape,
            ..
        } = *self.reduction;
        let depth = self.reduction.depth(self.rank, self.world);
        let stored = match b_transposed {
            false => (depth, shape.n),
            true => (shape.n, depth),
        };
        let own = |buffer, rows, cols| {
            Effect::Read(Region {
                rank: self.rank,
                buffer,
                rows,
                cols: 0..cols,
            })
        };
        vec![
            own(a, group.rows.clone(), depth),
            own(b, 0..stored.0, stored.1),
        ]
    }

    /// Where the part of `source` lies in its staging.
    fn staged(&self, source: usize, group: &Group) -> Region {
        let rows = self.rows_at(place_of(group.owner, source), group);
        self.all_columns(source, self.reduction.staging, rows)
    }

    /// Where the part of `source` of an own group is fetched to.
    fn fetched(&self, source: usize, group: &Group) -> Region {
        let rows = self.rows_at(place_of(source, self.rank), group);
        self.all_columns(self.rank, self.reduction.fetched, rows)
    }

    /// The rows of a group behind `above` shards of the largest size.
    fn rows_at(&self, above: usize, group: &Group) -> Range<usize> {
        let m = self.reduction.shape.m;
        let first = shard(m, group.owner, self.world).start;
        let start = above * m.div_ceil(self.world) + group.rows.start - first;
        start..start + group.rows.len()
    }

    fn all_columns(&self, rank: usize, buffer: BufferId, rows: Range<usize>) -> Region {
        Region {
            rank,
            buffer,
            rows,
            cols: 0..self.reduction.shape.n,
        }
    }
}
