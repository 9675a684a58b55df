//! The GEMM + all-reduce by multimem: `multimem_reduction.cu`. What the switch adds is read from the staging
//! of every rank, and what it copies is written to the C of every rank.

use super::reduction::{FILLED, TILES, done, partial, ready, result, shards};
use super::{Model, Planted, Published, Thread, aux_ended, begin, calls, end, peers};
use crate::matmul_reduce::{Group, order};

/// Who calls how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Multimem<'a> {
    /// Groups of each rank's shard.
    pub groups: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    pub planted: Option<Planted>,
}

impl Multimem<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.groups.len() {
            for block in 0..self.blocks[rank] {
                let reduces = self.groups[rank] > 0;
                if reduces {
                    let of = (rank, block, self.blocks[rank]);
                    model.aux_thread(of, self.calls, |reducer, call| {
                        self.reduce(reducer, rank, block, call);
                    });
                }
                model.thread(rank, |thread| {
                    for call in 1..=self.calls {
                        self.begin(thread, rank, block, call);
                        self.store(thread, rank, block, call);
                        if reduces && self.planted != Some(Planted::NoBlockBarrier) {
                            thread.barrier_wait(aux_ended(rank, block, call), 1);
                        }
                        self.end(thread, rank, block, call);
                    }
                });
            }
        }
        model
    }

    /// The tiles of C: owner, group and tile.
    fn tiles(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let owners = 0..self.groups.len();
        owners.flat_map(|owner| {
            let groups = 0..self.groups[owner];
            groups.flat_map(move |index| (0..TILES).map(move |tile| (owner, index, tile)))
        })
    }

    /// The kernel begins after what the stream did before. Block 0 stands for the stream.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            for tile in self.tiles() {
                thread.write(result(rank, tile), FILLED);
            }
            thread.arrive(begin(rank, call));
        }
        thread.barrier_wait(begin(rank, call), 1);
    }

    /// Warp 3 of a block: its pieces of own groups.
    fn reduce(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let world = self.groups.len();
        let unheard = match self.planted {
            Some(Planted::UnheardPeer) => Some((rank + 1) % world),
            Some(Planted::UnheardSelf) => Some(rank),
            _ => None,
        };
        for index in 0..self.groups[rank] {
            for source in (0..world).filter(|&source| Some(source) != unheard) {
                thread.wait(ready(index, source, rank), calls(rank));
            }
            for piece in (block..TILES).step_by(self.blocks[rank]) {
                let at = (rank, index, piece);
                for source in 0..world {
                    thread.read(partial(at, source), call);
                }
                thread.write(result(rank, at), call);
                for peer in peers(rank, world) {
                    thread.push(result(peer, at), call);
                }
            }
        }
    }

    /// The store warps: this rank's partial of all groups.
    fn store(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        for Group { owner, index, .. } in order(&shards(self.groups), rank, 1, true) {
            for tile in (block..TILES).step_by(self.blocks[rank]) {
                thread.part(
                    (format!("ready + {index} of {owner} on {rank}"), TILES),
                    Published::Partial,
                    (self.planted, tile),
                    |thread| thread.write(partial((owner, index, tile), rank), call),
                    |last| last.signal(ready(index, rank, owner), calls(rank)),
                );
            }
        }
    }

    /// The end of `multimem_reduce_gemm`, and what the stream does after it.
    fn end(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let peers = || peers(rank, self.groups.len());
        let over = |thread: &mut Thread<'_>| {
            peers().for_each(|peer| thread.signal(done(rank, peer), calls(rank)));
            for peer in peers() {
                if self.planted != Some(Planted::NoDone) {
                    thread.wait(done(peer, rank), calls(rank));
                }
            }
            thread.advance(calls(rank));
        };
        let early = self.planted == Some(Planted::EarlyEpoch);
        if early && block == 0 {
            over(thread);
        }
        let grid = format!("of the grid of {rank}");
        thread.take_ticket(grid, self.blocks[rank], |last| {
            if !early {
                over(last);
            }
        });
        thread.arrive(end(rank, call));
        thread.barrier_wait(end(rank, call), self.blocks[rank]);
        if block == 0 {
            for tile in self.tiles() {
                thread.read(result(rank, tile), call);
            }
            thread.check();
        }
    }
}

mod tests {
    use super::*;
    use crate::protocols::explore::{Orders, explore, is_wrong_data};

    /// Groups of each rank, blocks, calls.
    type Case = (&'static [usize], &'static [usize], u32);

    const CASES: [Case; 5] = [
        (&[1, 1], &[1, 2], 2),
        (&[1, 0], &[2, 1], 3),
        (&[1, 0], &[1, 2], 3),
        (&[2, 1], &[1, 1], 2),
        (&[1, 0, 1], &[1, 1, 1], 2),
    ];

    fn model((groups, blocks, calls): Case, planted: Option<Planted>) -> Model {
        let multimem = Multimem {
            groups,
            blocks,
            calls,
            planted,
        };
        multimem.model()
    }

    #[test]
    fn what_the_switch_adds_and_copies_is_between_its_flags() {
        for case in CASES {
            explore(&model(case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        let at = |planted| match planted {
            // One block has done everything when it ends.
            Planted::EarlyEpoch => CASES[1],
            _ => CASES[0],
        };
        for planted in [
            Planted::NoDone,
            Planted::BeforeLastTicket(Published::Partial),
            Planted::BeforeArrival(Published::Partial),
            Planted::EarlyEpoch,
            Planted::NoBlockBarrier,
            Planted::UnheardPeer,
            Planted::UnheardSelf,
        ] {
            let found = explore(&model(at(planted), Some(planted)), Orders::ALL);
            assert!(
                found.as_ref().is_err_and(|why| is_wrong_data(why)),
                "{planted:?}: {found:?}"
            );
        }
    }

    #[test]
    fn every_order_of_memory_is_needed() {
        for orders in Orders::but_one() {
            let found = explore(&model(CASES[0], None), orders);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{orders:?}");
        }
    }
}
