//! The kernels that a plan can launch, and what each of them does.

use super::{BufferId, Effect, MulticastRegion, Region, SlotId, Transport, chunks, shard};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_symm_mem::DType;

/// Sizes of a kernel's problem: C\[m,n\] = A\[m,k\] · B\[k,n\], A sharded by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelShape {
    /// Rows over all ranks.
    pub m: usize,
    /// Columns of B; 0 for a gather.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Element type.
    pub dtype: DType,
}

/// A kernel with the buffers and slots it is launched with.
///
/// `a` is the rank's own shard, in rows 0 .. shard length; `staging` holds all M rows; `b` and `c` are local.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kernel {
    /// Computes C, each element reading its row of A from the rank that holds it.
    NaiveRemoteRead {
        /// Sizes.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Gathers A into staging by loads from its owners and computes C from there.
    ThreadloadGatherMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Local.
        staging: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Each owner stores its rows of A to every rank's staging by the multicast address; all compute C from their own
    /// staging.
    MultimemGatherMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Multicast.
        staging: BufferId,
        /// "My rows are in your staging."
        ready: SlotId,
        /// "I have read your rows from my staging."
        free: SlotId,
    },
    /// Gathers A into staging by loads from its owners.
    ThreadloadGather {
        /// Sizes, with n = 0.
        shape: KernelShape,
        /// Symmetric.
        a: BufferId,
        /// Local.
        staging: BufferId,
        /// "My A may be read."
        ready: SlotId,
        /// "I have read your A."
        done: SlotId,
    },
    /// Each owner stores its rows of A to every rank's staging by the multicast address. The plan signals `free`.
    MultimemGather {
        /// Sizes, with n = 0.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Multicast.
        staging: BufferId,
        /// "My rows are in your staging."
        ready: SlotId,
        /// "I have read your rows from my staging."
        free: SlotId,
    },
    /// Computes C from this rank's rows where they lie and from the others' in staging, in the order of
    /// [`Kernel::arrivals`], each chunk of rows behind the signal of its owner.
    WaitingMatmul {
        /// Sizes.
        shape: KernelShape,
        /// Local.
        a: BufferId,
        /// Local.
        b: BufferId,
        /// Local.
        c: BufferId,
        /// Symmetric: the peers write their rows.
        staging: BufferId,
        /// "The next chunk of my rows is in your staging."
        ready: SlotId,
        /// Chunks of a shard, less those that are empty.
        chunks: usize,
    },
}

impl Kernel {
    /// The kernel's name, the same as that of its host reference.
    pub fn name(&self) -> &'static str {
        match self {
            Kernel::NaiveRemoteRead { .. } => "naive_remote_read",
            Kernel::ThreadloadGatherMatmul { .. } => "threadload_gather_matmul",
            Kernel::MultimemGatherMatmul { .. } => "multimem_gather_matmul",
            Kernel::ThreadloadGather { .. } => "threadload_gather",
            Kernel::MultimemGather { .. } => "multimem_gather",
            Kernel::WaitingMatmul { .. } => "waiting_matmul",
        }
    }

    /// Sizes of the problem.
    pub fn shape(&self) -> KernelShape {
        match *self {
            Kernel::NaiveRemoteRead { shape, .. }
            | Kernel::ThreadloadGatherMatmul { shape, .. }
            | Kernel::MultimemGatherMatmul { shape, .. }
            | Kernel::ThreadloadGather { shape, .. }
            | Kernel::MultimemGather { shape, .. }
            | Kernel::WaitingMatmul { shape, .. } => shape,
        }
    }

    /// The buffers it is launched with, in the order of the variant's fields.
    pub fn buffers(&self) -> Vec<BufferId> {
        match *self {
            Kernel::NaiveRemoteRead { a, b, c, .. } => vec![a, b, c],
            Kernel::ThreadloadGatherMatmul {
                a, b, c, staging, ..
            }
            | Kernel::MultimemGatherMatmul {
                a, b, c, staging, ..
            }
            | Kernel::WaitingMatmul {
                a, b, c, staging, ..
            } => vec![a, b, c, staging],
            Kernel::ThreadloadGather { a, staging, .. }
            | Kernel::MultimemGather { a, staging, .. } => vec![a, staging],
        }
    }

    /// The buffer of the product that it computes, if it computes one.
    pub fn result(&self) -> Option<BufferId> {
        match *self {
            Kernel::NaiveRemoteRead { c, .. }
            | Kernel::ThreadloadGatherMatmul { c, .. }
            | Kernel::MultimemGatherMatmul { c, .. }
            | Kernel::WaitingMatmul { c, .. } => Some(c),
            Kernel::ThreadloadGather { .. } | Kernel::MultimemGather { .. } => None,
        }
    }

    /// The slots it signals or waits on: first the one that says that data may be read, then, where the kernel has it,
    /// the one that says that it has been read.
    pub fn slots(&self) -> Vec<SlotId> {
        match *self {
            Kernel::NaiveRemoteRead { ready, done, .. }
            | Kernel::ThreadloadGatherMatmul { ready, done, .. }
            | Kernel::ThreadloadGather { ready, done, .. } => vec![ready, done],
            Kernel::MultimemGatherMatmul { ready, free, .. }
            | Kernel::MultimemGather { ready, free, .. } => vec![ready, free],
            Kernel::WaitingMatmul { ready, .. } => vec![ready],
        }
    }

    /// How the kernel moves data between ranks, or has it moved.
    pub fn transport(&self) -> Transport {
        match self {
            Kernel::NaiveRemoteRead { .. }
            | Kernel::ThreadloadGatherMatmul { .. }
            | Kernel::ThreadloadGather { .. } => Transport::ThreadLoads,
            Kernel::MultimemGatherMatmul { .. } | Kernel::MultimemGather { .. } => {
                Transport::Multimem
            }
            Kernel::WaitingMatmul { .. } => Transport::CopyEngine,
        }
    }

    /// The chunks of rows that [`Kernel::WaitingMatmul`] waits for, with their owners: those of rank r − 1 first, which
    /// has this rank as the first of its peers, then those of r − 2 and so on. None for other kernels.
    pub fn arrivals(&self, rank: usize, world: usize) -> Vec<(usize, Range<usize>)> {
        let Kernel::WaitingMatmul {
            shape,
            chunks: count,
            ..
        } = *self
        else {
            return Vec::new();
        };
        (1..world)
            .map(|step| (rank + world - step) % world)
            .flat_map(|owner| {
                chunks(shard(shape.m, owner, world), count).map(move |rows| (owner, rows))
            })
            .collect()
    }

    /// What the kernel does on `rank` of `world`: one lane for the rows of each owner.
    ///
    /// A kernel may keep more order than its lanes have, never less. More order cannot add a race, but it can add a
    /// deadlock: a kernel that takes its lanes one after the other sends all signals that stand first in a lane
    /// before it waits for anything, and keeps the waits that stand last for the end.
    pub fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let shape = self.shape();
        (0..world)
            .map(|owner| {
                let lane = Lane {
                    rank,
                    owner,
                    world,
                    shape,
                };
                let mut effects = lane.effects(self);
                effects.retain(|e| !e.is_void());
                effects
            })
            .filter(|lane| !lane.is_empty())
            .collect()
    }
}

impl Effect {
    /// Whether it touches no element and no word: empty shards and a world of one leave such effects.
    fn is_void(&self) -> bool {
        match self {
            Effect::Read(region) | Effect::Write(region) => region.is_empty(),
            Effect::WriteMulticast(region) => region.on(0).is_empty(),
            Effect::Signal { to, .. } => to.is_empty(),
            Effect::Wait { from, .. } => from.is_empty(),
        }
    }
}

/// The part of a kernel that deals with the rows of one owner.
struct Lane {
    rank: usize,
    owner: usize,
    world: usize,
    shape: KernelShape,
}

impl Lane {
    fn effects(&self, kernel: &Kernel) -> Vec<Effect> {
        match *kernel {
            Kernel::NaiveRemoteRead {
                a,
                b,
                c,
                ready,
                done,
                ..
            } => vec![
                self.signal(ready),
                self.wait(ready),
                self.read_shard(a),
                self.read_weight(b),
                self.write_product(c),
                self.signal(done),
                self.wait(done),
            ],
            Kernel::ThreadloadGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                done,
                ..
            } => vec![
                self.signal(ready),
                self.wait(ready),
                self.read_shard(a),
                Effect::Write(self.staged(staging)),
                self.signal(done),
                Effect::Read(self.staged(staging)),
                self.read_weight(b),
                self.write_product(c),
                self.wait(done),
            ],
            Kernel::ThreadloadGather {
                a,
                staging,
                ready,
                done,
                ..
            } => vec![
                self.signal(ready),
                self.wait(ready),
                self.read_shard(a),
                Effect::Write(self.staged(staging)),
                self.signal(done),
                self.wait(done),
            ],
            Kernel::MultimemGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                free,
                ..
            } => {
                let mut lane = self.multicast_or_await(a, staging, ready, free);
                lane.extend([
                    Effect::Read(self.staged(staging)),
                    self.read_weight(b),
                    self.write_product(c),
                    self.signal(free),
                ]);
                lane
            }
            Kernel::MultimemGather {
                a,
                staging,
                ready,
                free,
                ..
            } => self.multicast_or_await(a, staging, ready, free),
            // A word counts, so that the waits for one owner stand in order. The tiles of its chunks do not: a chunk may be
            // multiplied beside the next. Nothing outside can tell, since the kernel signals nothing and only its end
            // lets others have C and staging.
            Kernel::WaitingMatmul {
                b,
                c,
                staging,
                ready,
                chunks: count,
                ..
            } if self.owner != self.rank => chunks(self.rows(), count)
                .flat_map(|rows| {
                    [
                        self.wait(ready),
                        Effect::Read(self.own_box(staging, rows.clone(), self.shape.k)),
                        self.read_weight(b),
                        Effect::Write(self.own_box(c, rows, self.shape.n)),
                    ]
                })
                .collect(),
            // Own rows that share a tile with others are read from staging, so they are written there first.
            Kernel::WaitingMatmul {
                a, b, c, staging, ..
            } => vec![
                self.read_shard(a),
                Effect::Write(self.staged(staging)),
                Effect::Read(self.staged(staging)),
                self.read_weight(b),
                self.write_product(c),
            ],
        }
    }

    /// The owner stores its rows everywhere once all peers have freed them and says so; a peer waits for that.
    fn multicast_or_await(
        &self,
        a: BufferId,
        staging: BufferId,
        ready: SlotId,
        free: SlotId,
    ) -> Vec<Effect> {
        if self.owner != self.rank {
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

    fn rows(&self) -> Range<usize> {
        shard(self.shape.m, self.owner, self.world)
    }

    /// The owner, unless this rank is the owner: a rank does not signal itself.
    fn peer(&self) -> Vec<usize> {
        (self.owner != self.rank)
            .then_some(self.owner)
            .into_iter()
            .collect()
    }

    fn signal(&self, slot: SlotId) -> Effect {
        Effect::Signal {
            slot,
            to: self.peer(),
        }
    }

    fn wait(&self, slot: SlotId) -> Effect {
        Effect::Wait {
            slot,
            from: self.peer(),
            lag: 0,
        }
    }

    fn read_shard(&self, a: BufferId) -> Effect {
        Effect::Read(Region {
            rank: self.owner,
            buffer: a,
            rows: 0..self.rows().len(),
            cols: 0..self.shape.k,
        })
    }

    /// Rows of this rank's copy of a buffer.
    fn own_box(&self, buffer: BufferId, rows: Range<usize>, cols: usize) -> Region {
        Region {
            rank: self.rank,
            buffer,
            rows,
            cols: 0..cols,
        }
    }

    fn staged(&self, staging: BufferId) -> Region {
        self.own_box(staging, self.rows(), self.shape.k)
    }

    fn read_weight(&self, b: BufferId) -> Effect {
        Effect::Read(self.own_box(b, 0..self.shape.k, self.shape.n))
    }

    fn write_product(&self, c: BufferId) -> Effect {
        Effect::Write(self.own_box(c, self.rows(), self.shape.n))
    }
}
