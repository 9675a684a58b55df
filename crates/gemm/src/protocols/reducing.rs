//! The product with its sums: `reduction.cuh`.

use super::{Model, Planted, Thread, begin, end, peers};
use crate::reduction::{Group, order};

/// What the stream leaves in C before a call.
const FILLED: u32 = 1000;

/// Tiles of a group.
const TILES: usize = 2;

/// Who calls how often. What a block fetches of a part, a piece, has the size of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reducing<'a> {
    /// Groups of each rank's shard.
    pub groups: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Whether everyone gets the sums.
    pub everyone: bool,
    /// Whether a block fetches beside its product, not before it: for this there is to be one owner alone.
    pub beside: bool,
    pub planted: Option<Planted>,
}

impl Reducing<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.groups.len() {
            for block in 0..self.blocks[rank] {
                let beside = self.beside && (self.groups[rank] > 0 || self.awaits(block));
                if beside {
                    model.thread(|fetcher| {
                        for call in 1..=self.calls {
                            fetcher.meet(begin(rank, call), 1);
                            self.fetch(fetcher, rank, block, call);
                            fetcher.arrive(format!("of {rank}.{block} in call {call}"));
                            fetcher.meet(end(rank, call), self.blocks[rank]);
                        }
                    });
                }
                model.thread(|thread| {
                    for call in 1..=self.calls {
                        self.begin(thread, rank, block, call);
                        if !beside {
                            self.fetch(thread, rank, block, call);
                        }
                        self.store(thread, rank, block, call);
                        if beside && self.planted != Some(Planted::UnmetBlock) {
                            thread.meet(format!("of {rank}.{block} in call {call}"), 1);
                        }
                        self.end(thread, rank, block, call);
                    }
                });
            }
        }
        model
    }

    /// Whether the block waits for the sums of others.
    fn awaits(&self, block: usize) -> bool {
        self.everyone && block == 0 && self.planted != Some(Planted::NoAwaiter)
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

    /// One thread of a block: fetches its pieces of the own groups, and, where it is the awaiter, waits for all other sums.
    fn fetch(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let world = self.groups.len();
        for index in 0..self.groups[rank] {
            for peer in peers(rank, world).rev() {
                thread.wait(ready(index, peer, rank), calls(rank), 0);
                let count = |thread: &mut Thread<'_>| thread.arrive(arrived(index, peer, rank));
                let early = self.planted == Some(Planted::CountBeforeArrival);
                if early {
                    count(thread);
                }
                for piece in (block..TILES).step_by(self.blocks[rank]) {
                    let at = (rank, index, piece);
                    thread.read(part(at, peer), call);
                    thread.write(fetched(at, peer), call);
                }
                if !early {
                    count(thread);
                }
            }
        }
        if self.awaits(block) {
            for owner in peers(rank, world) {
                for index in 0..self.groups[owner] {
                    thread.wait(over(index, owner, rank), calls(rank), 0);
                }
            }
        }
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
                    false => self.leave(thread, rank, (owner, index, tile), call),
                }
            }
        }
    }

    /// A tile of a rank's part of another's group.
    fn leave(
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
        let credits = [
            (Planted::CreditBeforeArrival, Planted::SignalBeforeArrival),
            (Planted::CreditBeforeLastDraw, Planted::SignalBeforeLastDraw),
        ];
        let mut credits = credits.into_iter();
        let planted = credits.find(|(credit, _)| self.planted == Some(*credit));
        thread.part(
            (format!("over + {index} of {rank}"), TILES),
            (planted.map(|(_, signal)| signal), tile),
            |thread| {
                for peer in peers(rank, self.groups.len()) {
                    let all = self.blocks[rank] * call as usize;
                    thread.meet(arrived(index, peer, rank), all);
                    for piece in 0..TILES {
                        thread.read(fetched((rank, index, piece), peer), call);
                    }
                }
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

/// The counter of the blocks whose pieces of the part of `from` have been fetched.
fn arrived(index: usize, from: usize, to: usize) -> String {
    format!("arrivals of group {index} from {from} to {to}")
}

/// A tile, or a piece, of the part that `from` has of a group.
fn part((owner, index, tile): (usize, usize, usize), from: usize) -> String {
    format!("tile {tile} of group {index} of {owner} from {from}")
}

/// A piece of such a part at the group's owner.
fn fetched((owner, index, piece): (usize, usize, usize), from: usize) -> String {
    format!("piece {piece} of group {index} of {owner} fetched from {from}")
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
            beside: true,
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
            Planted::CountBeforeArrival,
            Planted::CreditBeforeArrival,
            Planted::EarlyEpoch,
        ];
        let of = |everyone: bool| move |planted| (everyone, planted);
        let planted = everywhere
            .into_iter()
            .flat_map(|planted| [(false, planted), (true, planted)]);
        let planted = planted.chain([Planted::NoCredit].map(of(false)));
        let of_everyone = [
            Planted::CreditBeforeLastDraw,
            Planted::UnmetBlock,
            Planted::NoAwaiter,
        ];
        for (everyone, planted) in planted.chain(of_everyone.map(of(true))) {
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
