//! The GEMM + reduction: `reduction.cu`.

use std::ops::Range;

use super::{Model, Planted, Published, Thread, aux_ended, begin, calls, end, peers};
use crate::matmul_reduce::{Group, order};

/// What the stream leaves in C before a call.
pub(super) const FILLED: u32 = 1000;

/// Tiles of a group.
pub(super) const TILES: usize = 2;

/// Who calls how often. What a block pulls of a partial, a piece, has the size of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction<'a> {
    /// Groups of each rank's shard.
    pub groups: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Whether everyone gets the result.
    pub everyone: bool,
    /// Whether a block pulls during its GEMM, not before it: for this there is to be one owner alone.
    pub overlapped: bool,
    pub planted: Option<Planted>,
}

impl Reduction<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.groups.len() {
            for block in 0..self.blocks[rank] {
                let overlapped = self.overlapped && self.pulls(rank);
                if overlapped {
                    let of = (rank, block, self.blocks[rank]);
                    model.aux_thread(of, self.calls, |puller, call| {
                        self.pull(puller, rank, block, call);
                    });
                }
                model.thread(rank, |thread| {
                    for call in 1..=self.calls {
                        self.begin(thread, rank, block, call);
                        if !overlapped {
                            self.pull(thread, rank, block, call);
                        }
                        self.store(thread, rank, block, call);
                        if overlapped && self.planted != Some(Planted::NoBlockBarrier) {
                            thread.barrier_wait(aux_ended(rank, block, call), 1);
                        }
                        self.end(thread, rank, block, call);
                    }
                });
            }
        }
        model
    }

    /// Whether there is anything that a rank pulls.
    fn pulls(&self, rank: usize) -> bool {
        self.groups[rank] > 0 || self.everyone
    }

    /// The tiles of C that a rank gets: owner, group and tile.
    fn tiles(&self, rank: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let owners = (0..self.groups.len()).filter(move |&owner| self.everyone || owner == rank);
        owners.flat_map(move |owner| {
            let groups = 0..self.groups[owner];
            groups.flat_map(move |index| (0..TILES).map(move |tile| (owner, index, tile)))
        })
    }

    /// The kernel begins after what the stream did before. Block 0 stands for the stream.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            for tile in self.tiles(rank) {
                thread.write(result(rank, tile), FILLED);
            }
            thread.arrive(begin(rank, call));
        }
        thread.barrier_wait(begin(rank, call), 1);
    }

    /// One thread of a block: its pieces of the partials of own groups and, where everyone gets them, of the
    /// results of others.
    fn pull(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let peers = || peers(rank, self.groups.len());
        let pieces = || (block..TILES).step_by(self.blocks[rank]);
        let most = self.groups.iter().copied().max().unwrap_or(0);
        thread.part(
            (format!("of the pullers of {rank}"), self.blocks[rank]),
            Published::Done,
            (self.planted, block),
            |thread| {
                for index in 0..=most {
                    for peer in peers().rev().filter(|_| index < self.groups[rank]) {
                        thread.wait(ready(index, peer, rank), calls(rank));
                        let count =
                            |thread: &mut Thread<'_>| thread.arrive(arrived(index, peer, rank));
                        let early = self.planted == Some(Planted::CountBeforeArrival);
                        if early {
                            count(thread);
                        }
                        for piece in pieces() {
                            let at = (rank, index, piece);
                            thread.read(partial(at, peer), call);
                            thread.write(pulled(at, peer), call);
                        }
                        if !early {
                            count(thread);
                        }
                    }
                    let before = index.checked_sub(1).filter(|_| self.everyone);
                    for (owner, index) in peers().rev().zip(before.into_iter().cycle()) {
                        if index < self.groups[owner] {
                            thread.wait(reduced(index, owner, rank), calls(rank));
                            for piece in pieces() {
                                let at = (owner, index, piece);
                                thread.read(result(owner, at), call);
                                thread.write(result(rank, at), call);
                            }
                        }
                    }
                }
            },
            |last| peers().for_each(|peer| last.signal(done(rank, peer), calls(rank))),
        );
    }

    /// The load warp, the consumers and the store warps, which follow each other for a tile.
    fn store(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        for Group { owner, index, .. } in order(&shards(self.groups), rank, 1, self.everyone) {
            for tile in (block..TILES).step_by(self.blocks[rank]) {
                match owner == rank {
                    true => self.reduce(thread, (rank, index, tile), call),
                    false => self.leave(thread, rank, (owner, index, tile), call),
                }
            }
        }
    }

    /// A tile of a rank's partial of another's group.
    fn leave(
        &self,
        thread: &mut Thread<'_>,
        rank: usize,
        (owner, index, tile): (usize, usize, usize),
        call: u32,
    ) {
        thread.part(
            (format!("ready + {index} of {owner} on {rank}"), TILES),
            Published::Partial,
            (self.planted, tile),
            |thread| thread.write(partial((owner, index, tile), rank), call),
            |last| last.signal(ready(index, rank, owner), calls(rank)),
        );
    }

    /// A tile of a rank's own group.
    fn reduce(&self, thread: &mut Thread<'_>, at: (usize, usize, usize), call: u32) {
        let (rank, index, tile) = at;
        let peers = || peers(rank, self.groups.len());
        let add = |thread: &mut Thread<'_>| {
            for peer in peers() {
                let all = self.blocks[rank] * call as usize;
                thread.barrier_wait(arrived(index, peer, rank), all);
                for piece in 0..TILES {
                    thread.read(pulled((rank, index, piece), peer), call);
                }
            }
            thread.write(result(rank, at), call);
        };
        if !self.everyone {
            return add(thread);
        }
        thread.part(
            (format!("reduced + {index} of {rank}"), TILES),
            Published::Results,
            (self.planted, tile),
            add,
            |last| peers().for_each(|peer| last.signal(reduced(index, rank, peer), calls(rank))),
        );
    }

    /// The end of `reduce_gemm`, and what the stream does after it.
    fn end(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let early = self.planted == Some(Planted::EarlyEpoch);
        let over = |thread: &mut Thread<'_>| {
            for peer in peers(rank, self.groups.len()) {
                if self.planted != Some(Planted::NoDone) {
                    thread.wait(done(peer, rank), calls(rank));
                }
            }
            thread.advance(calls(rank));
        };
        if early && block == 0 {
            over(thread);
        }
        thread.take_ticket(
            format!("of the grid of {rank}"),
            self.blocks[rank],
            |last| {
                if !early {
                    over(last);
                }
            },
        );
        thread.arrive(end(rank, call));
        thread.barrier_wait(end(rank, call), self.blocks[rank]);
        if block == 0 {
            self.tiles(rank)
                .for_each(|tile| thread.read(result(rank, tile), call));
            thread.check();
        }
    }
}

/// The groups of each rank's shard among all, as rows of one.
pub(super) fn shards(groups: &[usize]) -> Vec<Range<usize>> {
    let starts = groups.iter().scan(0, |start, &groups| {
        *start += groups;
        Some(*start - groups..*start)
    });
    starts.collect()
}

pub(super) fn ready(index: usize, from: usize, to: usize) -> String {
    format!("ready + {index} from {from} to {to}")
}

fn reduced(index: usize, from: usize, to: usize) -> String {
    format!("reduced + {index} from {from} to {to}")
}

pub(super) fn done(from: usize, to: usize) -> String {
    format!("done from {from} to {to}")
}

/// The counter of the blocks whose pieces of the partial of `from` have been pulled.
fn arrived(index: usize, from: usize, to: usize) -> String {
    format!("arrivals of group {index} from {from} to {to}")
}

/// A tile, or a piece, of the partial that `from` has of a group.
pub(super) fn partial((owner, index, tile): (usize, usize, usize), from: usize) -> String {
    format!("tile {tile} of group {index} of {owner} from {from}")
}

/// A piece of such a partial at the group's owner.
fn pulled((owner, index, piece): (usize, usize, usize), from: usize) -> String {
    format!("piece {piece} of group {index} of {owner} pulled from {from}")
}

/// A tile of the C of `to`.
pub(super) fn result(to: usize, (owner, index, tile): (usize, usize, usize)) -> String {
    format!("tile {tile} of group {index} of {owner} in C of {to}")
}

#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::protocols::explore::{Orders, explore, is_wrong_data};

    /// Groups of each rank, blocks, calls.
    type Case = (&'static [usize], &'static [usize], u32);

    const CASES: [Case; 6] = [
        (&[1, 1], &[2, 2], 2),
        (&[1, 0], &[2, 2], 2),
        (&[2, 1], &[1, 2], 2),
        (&[3, 2], &[1, 1], 3),
        (&[1, 1, 1], &[1, 1, 1], 2),
        (&[1, 0, 1], &[1, 2, 1], 2),
    ];

    /// Where everyone gets the result there are more orders than end in seconds with two blocks on both
    /// ranks.
    const OF_EVERYONE: [Case; 6] = [
        (&[1, 1], &[1, 2], 2),
        (&[1, 0], &[2, 1], 3),
        (&[1, 0], &[1, 2], 3),
        CASES[3],
        CASES[4],
        CASES[5],
    ];

    fn model((groups, blocks, calls): Case, everyone: bool, planted: Option<Planted>) -> Model {
        let reduction = Reduction {
            groups,
            blocks,
            calls,
            everyone,
            overlapped: true,
            planted,
        };
        reduction.model()
    }

    #[test]
    fn what_is_pulled_is_read_between_its_flag_and_the_end_of_the_call() {
        for (cases, everyone) in [(CASES, false), (OF_EVERYONE, true)] {
            for case in cases {
                explore(&model(case, everyone, None), Orders::ALL).unwrap();
            }
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        let everywhere = [
            Planted::NoDone,
            Planted::BeforeLastTicket(Published::Partial),
            Planted::BeforeLastTicket(Published::Done),
            Planted::BeforeArrival(Published::Partial),
            Planted::BeforeArrival(Published::Done),
            Planted::CountBeforeArrival,
            Planted::EarlyEpoch,
            Planted::NoBlockBarrier,
        ];
        let of_everyone = [
            Planted::BeforeLastTicket(Published::Results),
            Planted::BeforeArrival(Published::Results),
        ];
        let with = |everyone: bool| move |planted| (everyone, planted);
        let planted = everywhere.map(with(false)).into_iter();
        let planted = planted.chain(everywhere.map(with(true)));
        for (everyone, planted) in planted.chain(of_everyone.map(with(true))) {
            let found = explore(&model(CASES[0], everyone, Some(planted)), Orders::ALL);
            assert!(
                found.as_ref().is_err_and(|why| is_wrong_data(why)),
                "{planted:?}, {everyone}: {found:?}"
            );
        }
    }

    #[test]
    fn every_order_of_memory_is_needed() {
        for everyone in [false, true] {
            for orders in Orders::but_one() {
                let found = explore(&model(CASES[0], everyone, None), orders);
                assert!(
                    found.is_err_and(|why| is_wrong_data(&why)),
                    "{orders:?}, {everyone}"
                );
            }
        }
    }
}
