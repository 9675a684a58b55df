//! The product whose K is sharded, with the sums of all ranks' parts in the same launch.

use super::{BufferId, KernelShape, MOST_SLOTS, SlotId, layout_of, shard};
use crate::plan::{Effect, Region};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_gemm::matmul_reduce::{Group, order};

/// The operands of [`Kernel::ReducingMatmul`](super::Kernel::ReducingMatmul).
///
/// K is sharded, so that each rank has a part of all of C; the rows of C are sharded, and each rank sums its own. A shard is
/// cut into groups of rows from its first on. Each group is announced by signals in slots of its own, and has lanes of its
/// own: the tiles of different groups are in no order, nor is what is fetched. A rank writes its own memory alone.
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
    #[serde(alias = "fetched")]
    pub pulled: BufferId,
    /// First of `groups` slots: "my part of the group may be fetched".
    pub ready: SlotId,
    /// Where everyone gets the sums, first of `groups` slots: "my group is summed, and may be fetched from my C".
    pub summed: Option<SlotId>,
    /// "I have fetched everything of yours."
    pub done: SlotId,
    /// Rows of a group, but the last of a shard.
    pub rows: usize,
    /// Groups of the largest shard.
    pub groups: usize,
}

impl Reduction {
    /// Whether every rank gets the sums.
    pub fn everyone(&self) -> bool {
        self.summed.is_some()
    }

    /// The rows of C that each rank owns.
    pub fn shards(&self, world: usize) -> Vec<Range<usize>> {
        (0..world)
            .map(|rank| shard(self.shape.m, rank, world))
            .collect()
    }

    /// The groups in the order in which `rank` takes them.
    pub fn order(&self, rank: usize, world: usize) -> Vec<Group> {
        let shards = self.shards(world);
        order(&shards, rank, self.rows.max(1), self.everyone())
    }

    /// Columns of A that `rank` has.
    pub fn depth(&self, rank: usize, world: usize) -> usize {
        shard(self.shape.k, rank, world).len()
    }

    pub(super) fn slots(&self) -> Vec<SlotId> {
        let of =
            |first: SlotId| (0..self.groups.min(MOST_SLOTS)).map(move |group| slot(first, group));
        let summed = self.summed.into_iter().flat_map(of);
        of(self.ready).chain(summed).chain([self.done]).collect()
    }

    /// The lanes, in the order in which the host takes them: of another rank's group one; of an own group one for the part of
    /// each other rank, and one; then one for the sums of each group that are fetched, and one that says that all is fetched.
    pub(super) fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let place = Place {
            reduction: self,
            rank,
            world,
        };
        let order = self.order(rank, world);
        let (mut lanes, mut pulls) = (Vec::new(), Vec::new());
        for group in &order {
            if group.owner != rank {
                lanes.push(place.leave(group));
                continue;
            }
            let parts: Vec<usize> = (lanes.len()..).take(world - 1).collect();
            let peers = place.peers().into_iter().rev();
            lanes.extend(peers.map(|peer| place.pull_part(group, peer)));
            lanes.push(place.sum(group, parts.clone()));
            pulls.extend(parts);
        }
        if let Some(summed) = self.summed {
            for group in order.iter().filter(|group| group.owner != rank) {
                pulls.push(lanes.len());
                lanes.push(place.pull_sums(group, summed));
            }
        }
        lanes.push(place.done(pulls));
        lanes
    }
}

/// The slot of a group.
fn slot(first: SlotId, group: usize) -> SlotId {
    SlotId(first.0.saturating_add(group))
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
    /// The other ranks, the next one first.
    fn peers(&self) -> Vec<usize> {
        (1..self.world)
            .map(|step| (self.rank + step) % self.world)
            .collect()
    }

    /// Another rank's group: the product, which is left where its owner fetches it.
    fn leave(&self, group: &Group) -> Vec<Effect> {
        let mut lane = self.multiply(group);
        lane.extend([
            Effect::Write(self.staged(self.rank, group)),
            Effect::Signal {
                slot: slot(self.reduction.ready, group.index),
                to: vec![group.owner],
            },
        ]);
        lane
    }

    /// The part that `peer` has of an own group.
    fn pull_part(&self, group: &Group, peer: usize) -> Vec<Effect> {
        vec![
            Effect::Wait {
                slot: slot(self.reduction.ready, group.index),
                from: vec![peer],
                lag: 0,
            },
            Effect::Read(self.staged(peer, group)),
            Effect::Write(self.pulled(peer, group)),
        ]
    }

    /// An own group: its product, the parts of the others that have been fetched in lanes `parts`, and its sums.
    fn sum(&self, group: &Group, parts: Vec<usize>) -> Vec<Effect> {
        let mut lane = self.multiply(group);
        lane.push(Effect::After(parts));
        let sources = (0..self.world).filter(|&source| source != self.rank);
        lane.extend(sources.map(|source| Effect::Read(self.pulled(source, group))));
        lane.push(Effect::Write(self.sums(self.rank, group)));
        lane.extend(self.reduction.summed.map(|summed| Effect::Signal {
            slot: slot(summed, group.index),
            to: self.peers(),
        }));
        lane
    }

    /// The sums of another rank's group.
    fn pull_sums(&self, group: &Group, summed: SlotId) -> Vec<Effect> {
        vec![
            Effect::Wait {
                slot: slot(summed, group.index),
                from: vec![group.owner],
                lag: 0,
            },
            Effect::Read(self.sums(group.owner, group)),
            Effect::Write(self.sums(self.rank, group)),
        ]
    }

    /// What follows the lanes that fetch: a call ends when nobody will read what is this rank's any more.
    fn done(&self, pulls: Vec<usize>) -> Vec<Effect> {
        let (slot, peers) = (self.reduction.done, self.peers());
        vec![
            Effect::After(pulls),
            Effect::Signal {
                slot,
                to: peers.clone(),
            },
            Effect::Wait {
                slot,
                from: peers,
                lag: 0,
            },
        ]
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
        let stored = layout_of(b_transposed).stored(depth, shape.n);
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
    fn pulled(&self, source: usize, group: &Group) -> Region {
        let rows = self.rows_at(place_of(source, self.rank), group);
        self.all_columns(self.rank, self.reduction.pulled, rows)
    }

    /// The sums of a group in the C of `rank`: an own group, where only owners have them.
    fn sums(&self, rank: usize, group: &Group) -> Region {
        let rows = match self.reduction.everyone() {
            true => group.rows.clone(),
            false => self.rows_at(0, group),
        };
        self.all_columns(rank, self.reduction.c, rows)
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
