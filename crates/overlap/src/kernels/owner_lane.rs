//! The effects of kernels that have one lane for the rows of each owner.

use std::ops::Range;

use super::KernelShape;
use crate::plan::{BufferId, Effect, MulticastRegion, Region, SlotId, layout_of, shard};

/// What a kernel does with the rows of one owner.
pub(super) struct OwnerLane {
    pub rank: usize,
    pub owner: usize,
    pub world: usize,
    pub shape: KernelShape,
}

impl OwnerLane {
    /// Those of all owners.
    pub fn all(
        shape: KernelShape,
        (rank, world): (usize, usize),
    ) -> impl Iterator<Item = OwnerLane> {
        (0..world).map(move |owner| OwnerLane {
            rank,
            owner,
            world,
            shape,
        })
    }

    pub fn is_own(&self) -> bool {
        self.owner == self.rank
    }

    /// The owner's rows.
    pub fn rows(&self) -> Range<usize> {
        shard(self.shape.m, self.owner, self.world)
    }

    /// The owner, unless this rank is the owner: a rank does not signal itself.
    fn peer(&self) -> Vec<usize> {
        (!self.is_own()).then_some(self.owner).into_iter().collect()
    }

    /// Signals the owner.
    pub fn signal(&self, slot: SlotId) -> Effect {
        Effect::Signal {
            slot,
            to: self.peer(),
        }
    }

    /// Waits for the owner's signal of this call.
    pub fn wait(&self, slot: SlotId) -> Effect {
        Effect::Wait {
            slot,
            from: self.peer(),
            lag: 0,
        }
    }

    /// Reads the rows where their owner has them.
    pub fn read_shard(&self, a: BufferId) -> Effect {
        Effect::Read(self.shard_rows(a, self.rows()))
    }

    /// Some of the rows where their owner has them.
    pub fn shard_rows(&self, a: BufferId, rows: Range<usize>) -> Region {
        let first = self.rows().start;
        Region {
            rank: self.owner,
            buffer: a,
            rows: rows.start - first..rows.end - first,
            cols: 0..self.shape.k,
        }
    }

    /// Rows of this rank's copy of a buffer.
    pub fn own_box(&self, buffer: BufferId, rows: Range<usize>, cols: usize) -> Region {
        Region {
            rank: self.rank,
            buffer,
            rows,
            cols: 0..cols,
        }
    }

    /// The rows in this rank's staging.
    pub fn staged(&self, staging: BufferId) -> Region {
        self.own_box(staging, self.rows(), self.shape.k)
    }

    /// Reads B, stored k × n or transposed.
    pub fn read_weight(&self, b: BufferId, transposed: bool) -> Effect {
        let KernelShape { n, k, .. } = self.shape;
        let (rows, cols) = layout_of(transposed).stored(k, n);
        Effect::Read(self.own_box(b, 0..rows, cols))
    }

    /// Writes the rows' results.
    pub fn write_result(&self, c: BufferId) -> Effect {
        Effect::Write(self.own_box(c, self.rows(), self.shape.n))
    }

    /// Pulls the rows into staging once their owner allows it, and gives them back.
    pub fn pull(
        &self,
        (a, staging): (BufferId, BufferId),
        (ready, done): (SlotId, SlotId),
    ) -> Vec<Effect> {
        vec![
            self.signal(ready),
            self.wait(ready),
            self.read_shard(a),
            Effect::Write(self.staged(staging)),
            self.signal(done),
        ]
    }

    /// The owner stores its rows everywhere once all peers have freed them, and signals; a peer waits for
    /// that.
    pub fn multicast_or_wait(
        &self,
        (a, staging): (BufferId, BufferId),
        (ready, free): (SlotId, SlotId),
    ) -> Vec<Effect> {
        if !self.is_own() {
            return vec![self.wait(ready)];
        }
        let peers: Vec<usize> = (0..self.world).filter(|&p| p != self.rank).collect();
        let staged = self.staged(staging);
        vec![
            Effect::Wait {
                slot: free,
                from: peers.clone(),
                lag: 1,
            },
            self.read_shard(a),
            Effect::WriteMulticast(MulticastRegion {
                buffer: staging,
                rows: staged.rows,
                cols: staged.cols,
            }),
            Effect::Signal {
                slot: ready,
                to: peers,
            },
        ]
    }
}
