//! What each kernel does, lane by lane.

use super::{GatherProtocol, Kernel, KernelShape, layout_of};
use crate::plan::{BufferId, Effect, MulticastRegion, Region, SlotId, chunks, shard};
use std::ops::Range;

impl Kernel {
    /// What the kernel does on `rank` of `world`: one lane for the rows of each owner, or lanes for each group of them, some of
    /// which come after others.
    ///
    /// A kernel may keep more order than its lanes have, never less. More order cannot add a race, but it can add a
    /// deadlock: a kernel that takes its lanes one after the other sends all signals that stand first in a lane
    /// before it waits for anything, and keeps the waits that stand last for the end.
    pub fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        let lane = |owner| Lane {
            rank,
            owner,
            world,
            shape: self.shape(),
        };
        let mut lanes: Vec<Vec<Effect>> = match self {
            Kernel::ReducingMatmul(reduction) => reduction.lanes(rank, world),
            Kernel::OneShotMatmul(one_shot) => one_shot.lanes(rank, world),
            Kernel::AllGatherMatmul {
                protocol: GatherProtocol::Eager { .. },
                ..
            } => {
                let mut lanes = vec![lane(rank).write_eagerly(self)];
                lanes.extend((0..world).map(|owner| lane(owner).effects(self)));
                lanes
            }
            Kernel::AllGatherMatmul {
                protocol: GatherProtocol::Rendezvous { pushed: 1.., .. },
                ..
            } => {
                let (own, others): (Vec<_>, _) = (0..world).map(lane).partition(Lane::is_own);
                let mut lanes = self.gathering_lanes(&others);
                lanes.extend(own.iter().map(|lane| lane.effects(self)));
                lanes
            }
            _ => (0..world).map(|o| lane(o).effects(self)).collect(),
        };
        for effects in &mut lanes {
            effects.retain(|e| !e.is_void());
        }
        // Where lanes come after others, each has something to wait for: none is void, and their numbers hold.
        lanes.retain(|effects| !effects.is_empty());
        lanes
    }

    /// Of a product that gathers and has rows pushed, what it does for the other ranks: for each with any rows a lane for the word
    /// that the first are here, one for their product and one for what is fetched, behind all those words; and one at the end, in
    /// which all have theirs back.
    fn gathering_lanes(&self, others: &[Lane]) -> Vec<Vec<Effect>> {
        let &Kernel::AllGatherMatmul {
            a,
            c,
            staging,
            ready,
            chunk_rows,
            protocol: GatherProtocol::Rendezvous { done, pushed },
            ..
        } = self
        else {
            return Vec::new();
        };
        let pushed_rows = pushed.saturating_mul(chunk_rows);
        let middle = |lane: &Lane| {
            let Range { start, end } = lane.rows();
            end.min(start.saturating_add(pushed_rows))
        };
        let multiply = |lane: &Lane, rows: Range<usize>| {
            let mut effects = vec![Effect::Read(lane.own_box(
                staging,
                rows.clone(),
                lane.shape.k,
            ))];
            effects.extend(lane.read_weights(self));
            effects.push(Effect::Write(lane.own_box(c, rows, lane.shape.n)));
            effects
        };
        let come: Vec<&Lane> = others
            .iter()
            .filter(|lane| !lane.rows().is_empty())
            .collect();
        let words = 0..come.len();
        let mut lanes: Vec<Vec<Effect>> = come.iter().map(|lane| vec![lane.wait(ready)]).collect();
        for (word, lane) in come.iter().enumerate() {
            let mut effects = vec![Effect::After(vec![word])];
            effects.extend(multiply(lane, lane.rows().start..middle(lane)));
            lanes.push(effects);
        }
        for lane in &come {
            let Range { start, end } = lane.rows();
            let rows = middle(lane)..end;
            let pulled = Region {
                rank: lane.owner,
                buffer: a,
                rows: rows.start - start..rows.end - start,
                cols: 0..lane.shape.k,
            };
            let mut effects = vec![
                Effect::After(words.clone().collect()),
                Effect::Read(pulled),
                Effect::Write(lane.own_box(staging, rows.clone(), lane.shape.k)),
            ];
            effects.extend(multiply(lane, rows));
            lanes.push(effects);
        }
        let to: Vec<usize> = others.iter().map(|lane| lane.owner).collect();
        lanes.push(vec![
            Effect::After((words.end..lanes.len()).collect()),
            Effect::Signal {
                slot: done,
                to: to.clone(),
            },
            Effect::Wait {
                slot: done,
                from: to,
                lag: 0,
            },
        ]);
        lanes
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
            Effect::After(lanes) => lanes.is_empty(),
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
                self.write_gemm(c),
                self.signal(done),
                self.wait(done),
            ],
            // This rank's rows are read where they lie.
            Kernel::AllGatherMatmul { a, c, .. } if self.is_own() => {
                let mut lane = vec![self.read_shard(a)];
                lane.extend(self.read_weights(kernel));
                lane.push(self.write_gemm(c));
                lane
            }
            // The word of one without rows is waited for too.
            Kernel::AllGatherMatmul {
                c,
                staging,
                ready,
                protocol: GatherProtocol::Eager { .. },
                ..
            } => {
                let mut lane = vec![self.wait(ready), Effect::Read(self.staged(staging))];
                lane.extend(self.read_weights(kernel));
                lane.push(self.write_gemm(c));
                lane
            }
            // One that works in chunks multiplies some before it has fetched them all. Nothing outside can tell: what it does
            // behind its last word is seen by this rank alone.
            Kernel::ThreadloadGatherMatmul {
                a,
                c,
                staging,
                ready,
                done,
                ..
            }
            | Kernel::AllGatherMatmul {
                a,
                c,
                staging,
                ready,
                protocol: GatherProtocol::Rendezvous { done, .. },
                ..
            } => {
                let mut lane = vec![
                    self.signal(ready),
                    self.wait(ready),
                    self.read_shard(a),
                    Effect::Write(self.staged(staging)),
                    self.signal(done),
                    Effect::Read(self.staged(staging)),
                ];
                lane.extend(self.read_weights(kernel));
                lane.extend([self.write_gemm(c), self.wait(done)]);
                lane
            }
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
                    self.write_gemm(c),
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
            } if !self.is_own() => chunks(self.rows(), count)
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
                self.write_gemm(c),
            ],
            // Their lanes are not those of owners.
            Kernel::ReducingMatmul(_) | Kernel::OneShotMatmul(_) => Vec::new(),
        }
    }

    /// The owner writes its rows to all others, and says so.
    fn write_eagerly(&self, kernel: &Kernel) -> Vec<Effect> {
        let &Kernel::AllGatherMatmul {
            a, staging, ready, ..
        } = kernel
        else {
            return Vec::new();
        };
        let peers: Vec<usize> = (1..self.world)
            .map(|step| (self.rank + step) % self.world)
            .collect();
        let mut lane = vec![self.read_shard(a)];
        lane.extend(peers.iter().map(|&peer| {
            Effect::Write(Region {
                rank: peer,
                ..self.staged(staging)
            })
        }));
        lane.push(Effect::Signal {
            slot: ready,
            to: peers,
        });
        lane
    }

    /// The owner stores its rows everywhere once all peers have freed them and says so; a peer waits for that.
    fn multicast_or_await(
        &self,
        a: BufferId,
        staging: BufferId,
        ready: SlotId,
        free: SlotId,
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

    fn is_own(&self) -> bool {
        self.owner == self.rank
    }

    fn rows(&self) -> Range<usize> {
        shard(self.shape.m, self.owner, self.world)
    }

    /// The owner, unless this rank is the owner: a rank does not signal itself.
    fn peer(&self) -> Vec<usize> {
        (!self.is_own()).then_some(self.owner).into_iter().collect()
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

    /// The weight as the kernel has it stored, and the bias.
    fn read_weights(&self, kernel: &Kernel) -> Vec<Effect> {
        let KernelShape { n, k, .. } = self.shape;
        match *kernel {
            Kernel::AllGatherMatmul {
                b,
                b_transposed,
                bias,
                ..
            } => {
                let (rows, cols) = layout_of(b_transposed).stored(k, n);
                let weight = self.own_box(b, 0..rows, cols);
                let bias = bias.map(|bias| self.own_box(bias, 0..1, n));
                std::iter::once(weight)
                    .chain(bias)
                    .map(Effect::Read)
                    .collect()
            }
            Kernel::NaiveRemoteRead { b, .. }
            | Kernel::ThreadloadGatherMatmul { b, .. }
            | Kernel::MultimemGatherMatmul { b, .. }
            | Kernel::WaitingMatmul { b, .. } => vec![self.read_weight(b)],
            // Its lanes have it.
            Kernel::ReducingMatmul(_)
            | Kernel::ThreadloadGather { .. }
            | Kernel::MultimemGather { .. }
            | Kernel::OneShotMatmul(_) => Vec::new(),
        }
    }

    fn write_gemm(&self, c: BufferId) -> Effect {
        Effect::Write(self.own_box(c, self.rows(), self.shape.n))
    }
}
