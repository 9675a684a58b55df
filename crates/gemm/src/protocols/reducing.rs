//! The product with its sums: `reduction.cuh`.

use super::{Model, Planted, Thread, begin, end, peers};
use crate::reduction::{Group, order};

/// What the stream leaves in C before a call.
const FILLED: u32 = 1000;

/// Tiles of a group.
const TILES: usize = 2;

/// Who calls how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducing<'a> {
    /// Groups of each rank's shard.
    pub groups: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Whether everyone gets the sums.
    pub everyone: bool,
    pub planted: Option<Planted>,
}

impl Reducing<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.groups.len() {
            let awaits = self.everyone && self.planted != Some(Planted::NoAwaiter);
            for block in 0..self.blocks[rank] {
                model.thread(|thread| {
                    for call in 1..=self.calls {
                        self.begin(thread, rank, block, call);
                        self.store(thread, rank, block, call);
                        if awaits && block == 0 && self.planted != Some(Planted::UnmetBlock) {
                            thread.meet(format!("of block 0 of {rank} in call {call}"), 1);
                        }
                        self.end(thread, rank, block, call);
                    }
                });
            }
            if awaits {
                model.thread(|awaiter| {
                    for call in 1..=self.calls {
                        awaiter.meet(begin(rank, call), 1);
                        for owner in peers(rank, self.groups.len()) {
                            for index in 0..self.groups[owner] {
                                awaiter.wait(over(index, owner, rank), calls(rank), 0);
                            }
                        }
                        awaiter.arrive(format!("of block 0 of {rank} in call {call}"));
                        awaiter.meet(end(rank, call), self.blocks[rank]);
                    }
                });
            }
        }
        model
    }

    /// The tiles of C that a rank gets: owner, group and tile.
    fn tiles(&self, rank: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let owners = (0..self.groups.len()).filter(move |&owner| self.everyone || owner == rank);
        owners.flat_map(move |owner| {
            let groups = 0..self.groups[owner];
            groups.flat_map(move |index| (0..TILES).map(move |tile| (owner, index, tile)))
        })
    }

    /// The kernel begins behind what the stream did before. Block 0 stands for the stream.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            for tile in self.tiles(rank) {
                thread.write(sum(rank, tile), FILLED);
            }
            thread.arrive(begin(rank, call));
        }
        thread.meet(begin(rank, call), 1);
    }

    /// `load_parts`, `consume` and `store_parts`, which follow each other for a tile.
    fn store(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let starts = self.groups.iter().scan(0, |start, &groups| {
            *start += groups;
            Some(*start - groups..*start)
        });
        let shards: Vec<_> = starts.collect();
        for Group { owner, index, .. } in order(&shards, rank, 1) {
            for tile in (block..TILES).step_by(self.blocks[rank]) {
                match owner == rank {
                    true => self.sum(thread, (rank, index, tile), call),
                    false => self.send(thread, rank, (owner, index, tile), call),
                }
            }
        }
    }

    /// A tile of a rank's part of another's group.
    fn send(
        &self,
        thread: &mut Thread<'_>,
        rank: usize,
        (owner, index, tile): (usize, usize, usize),
        call: u32,
    ) {
        if !self.everyone && self.planted != Some(Planted::NoCredit) {
            thread.wait(over(index, owner, rank), calls(rank), 1);
        }
        thread.part(
            (format!("ready + {index} of {owner} on {rank}"), TILES),
            (self.planted, tile),
            |thread| thread.write(part((owner, index, tile), rank), call),
            |last| last.signal(ready(index, rank, owner), calls(rank)),
        );
    }

    /// A tile of a rank's own group.
    fn sum(&self, thread: &mut Thread<'_>, at: (usize, usize, usize), call: u32) {
        let (rank, index, tile) = at;
        for peer in peers(rank, self.groups.len()) {
            thread.wait(ready(index, peer, rank), calls(rank), 0);
        }
        for peer in peers(rank, self.groups.len()) {
            thread.read(part(at, peer), call);
        }
        let early = self.planted == Some(Planted::CreditBeforeLastDraw);
        thread.part(
            (format!("over + {index} of {rank}"), TILES),
            (early.then_some(Planted::SignalBeforeLastDraw), tile),
            |thread| {
                let ranks = 0..self.groups.len();
                let getters = ranks.filter(|&to| self.everyone || to == rank);
                getters.for_each(|to| thread.write(sum(to, at), call));
            },
            |last| {
                let peers = peers(rank, self.groups.len());
                peers.for_each(|peer| last.signal(over(index, rank, peer), calls(rank)));
            },
        );
    }

    /// The end of `reduce`, and what the stream does behind it.
    fn end(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let early = self.planted == Some(Planted::EarlyEpoch);
        if early && block == 0 {
            thread.advance(calls(rank));
        }
        thread.draw(
            format!("of the grid of {rank}"),
            self.blocks[rank],
            |last| {
                if !early {
                    last.advance(calls(rank));
                }
            },
        );
        thread.arrive(end(rank, call));
        thread.meet(end(rank, call), self.blocks[rank]);
        if block == 0 {
            self.tiles(rank)
                .for_each(|tile| thread.read(sum(rank, tile), call));
        }
    }
}

fn ready(index: usize, from: usize, to: usize) -> String {
    format!("ready + {index} from {from} to {to}")
}

fn over(index: usize, from: usize, to: usize) -> String {
    format!("over + {index} from {from} to {to}")
}

/// The number of the call, which all words of a rank carry.
fn calls(rank: usize) -> String {
    format!("calls of {rank}")
}

/// A tile of the part that `from` sends of a group.
fn part((owner, index, tile): (usize, usize, usize), from: usize) -> String {
    format!("tile {tile} of group {index} of {owner} from {from}")
}

/// A tile of the C of `to`.
fn sum(to: usize, (owner, index, tile): (usize, usize, usize)) -> String {
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
        (&[1, 0], &[2, 2], 3),
        (&[2, 1], &[1, 2], 2),
        (&[3, 2], &[1, 1], 3),
        (&[1, 1, 1], &[1, 1, 1], 2),
        (&[1, 0, 1], &[1, 2, 1], 2),
    ];

    fn model((groups, blocks, calls): Case, everyone: bool, planted: Option<Planted>) -> Model {
        let reducing = Reducing {
            groups,
            blocks,
            calls,
            everyone,
            planted,
        };
        reducing.model()
    }

    #[test]
    fn parts_are_added_between_their_word_and_their_credit() {
        for case in CASES {
            for everyone in [false, true] {
                explore(&model(case, everyone, None), Orders::ALL).unwrap();
            }
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        let everywhere = [
            Planted::SignalBeforeLastDraw,
            Planted::SignalBeforeArrival,
            Planted::CreditBeforeLastDraw,
            Planted::EarlyEpoch,
        ];
        let of = |everyone: bool| move |planted| (everyone, planted);
        let planted = everywhere
            .into_iter()
            .flat_map(|planted| [(false, planted), (true, planted)]);
        let planted = planted.chain([Planted::NoCredit].map(of(false)));
        for (everyone, planted) in
            planted.chain([Planted::UnmetBlock, Planted::NoAwaiter].map(of(true)))
        {
            let found = explore(&model(CASES[0], everyone, Some(planted)), Orders::ALL);
            assert!(
                found.is_err_and(|why| is_wrong_data(&why)),
                "{planted:?}, {everyone}"
            );
        }
    }

    #[test]
    fn every_order_of_memory_is_needed() {
        let all = Orders::ALL;
        for everyone in [false, true] {
            for orders in [
                Orders {
                    waits: false,
                    ..all
                },
                Orders {
                    signals: false,
                    ..all
                },
                Orders {
                    draws: false,
                    ..all
                },
            ] {
                let found = explore(&model(CASES[0], everyone, None), orders);
                assert!(
                    found.is_err_and(|why| is_wrong_data(&why)),
                    "{orders:?}, {everyone}"
                );
            }
        }
    }
}
