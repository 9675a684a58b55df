//! The GEMM whose partials every rank reduces by itself: `one_shot.cu`.

use std::ops::Range;

use super::{Model, Part, Planted, Published, Thread, begin, calls, end, peers};

/// Who calls how often. C is a row of pieces, and units and tiles are some of them that lie side by side:
/// powers of two, as in the kernel, so that of a unit and a tile that meet one lies in the other. A block has
/// one consumer.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneShot<'a> {
    /// Pieces of C.
    pub pieces: usize,
    /// Pieces of a unit, but the last.
    pub unit: usize,
    /// Pieces of a tile, by rank.
    pub tiles: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Threads of a block that take tickets and store during its reduction, which it makes after both if
    /// there are none.
    pub overlapped: usize,
    pub planted: Option<Planted>,
}

impl OneShot<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.world() {
            let all = self.blocks[rank];
            for block in 0..all {
                let take =
                    |thread: &mut Thread<'_>, call| self.take_ticket(thread, rank, block, call);
                let store = |thread: &mut Thread<'_>, call| self.store(thread, rank, block, call);
                let both = |thread: &mut Thread<'_>, call| {
                    take(thread, call);
                    store(thread, call);
                };
                let sides: &[Part<'_>] = match self.overlapped {
                    1 => &[&both],
                    // Or none, and both before the rest.
                    _ => &[&take, &store],
                };
                model.block(
                    (rank, block, all),
                    (self.calls, self.overlapped > 0),
                    sides,
                    [
                        &|thread, call| self.begin(thread, rank, block, call),
                        &|thread, call| self.reduce(thread, rank, block, call),
                        &|thread, call| self.end(thread, rank, block, call),
                    ],
                );
            }
        }
        model
    }

    fn world(&self) -> usize {
        self.tiles.len()
    }

    /// The tiles of a block.
    fn tiles(&self, rank: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
        let tiles = pieces(0..self.pieces, self.tiles[rank]);
        tiles.skip(block).step_by(self.blocks[rank])
    }

    /// The units in which a tile lies.
    fn units(&self, tile: &Range<usize>) -> Range<usize> {
        tile.start / self.unit..tile.end.div_ceil(self.unit)
    }

    /// Tiles of a rank that meet a unit.
    fn stores(&self, rank: usize, unit: usize) -> usize {
        let first = unit * self.unit;
        let end = self.pieces.min(first + self.unit);
        pieces(first..end, self.tiles[rank]).count()
    }

    /// The kernel begins after what the stream did before. Block 0 stands for the stream.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            thread.arrive(begin(rank, call));
        }
        thread.barrier_wait(begin(rank, call), 1);
        thread.keep(calls(rank), number(rank, block));
        thread.arrive(counted(rank, block, call));
    }

    /// After the barrier of the block.
    fn take_ticket(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if self.planted != Some(Planted::UnreadCall) {
            thread.barrier_wait(counted(rank, block, call), 1);
        }
        let early = self.planted == Some(Planted::EarlyEpoch);
        if early && block == 0 {
            thread.advance(calls(rank));
        }
        let all = self.blocks[rank];
        thread.take_ticket(format!("of the grid of {rank}"), all, |last| {
            if !early {
                last.advance(calls(rank));
            }
        });
    }

    /// `store_partial` and `signal_units`. Units of which a tile has several have no other tile.
    fn store(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        thread.barrier_wait(counted(rank, block, call), 1);
        for tile in self.tiles(rank, block) {
            let units = self.units(&tile);
            let first = units.start;
            let ticket = format!("of unit {first} on {rank}");
            thread.part(
                (ticket, self.stores(rank, first)),
                Published::Partial,
                (self.planted, tile.start % self.unit),
                |thread| {
                    for to in peers(rank, self.world()).chain([rank]) {
                        for piece in tile.clone() {
                            thread.push(self.staged(piece, rank, to, call), call);
                        }
                    }
                },
                |last| {
                    for unit in units {
                        for to in 0..self.world() {
                            last.signal(ready(unit, rank, to), number(rank, block));
                        }
                    }
                },
            );
        }
    }

    /// `reduce_box`.
    fn reduce(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        let unheard = match self.planted {
            Some(Planted::UnheardPeer) => peers(rank, self.world()).next(),
            Some(Planted::UnheardSelf) => Some(rank),
            _ => None,
        };
        for tile in self.tiles(rank, block) {
            for unit in self.units(&tile) {
                for from in (0..self.world()).filter(|&from| Some(from) != unheard) {
                    thread.wait(ready(unit, from, rank), number(rank, block));
                }
            }
            for piece in tile {
                for from in 0..self.world() {
                    thread.read(self.staged(piece, from, rank, call), call);
                }
                thread.write(result(piece, rank), call);
            }
        }
    }

    /// The end of the kernel, and what the stream does after it.
    fn end(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        thread.arrive(end(rank, call));
        thread.barrier_wait(end(rank, call), self.blocks[rank]);
        if block == 0 {
            for piece in 0..self.pieces {
                thread.read(result(piece, rank), call);
            }
            thread.check();
        }
    }

    /// A piece of a partial, in the staging of `to` that the call takes.
    fn staged(&self, piece: usize, from: usize, to: usize, call: u32) -> String {
        let staging = match self.planted {
            Some(Planted::OneStaging) => 0,
            _ => call % 2,
        };
        format!("piece {piece} from {from} in staging {staging} of {to}")
    }
}

/// Some pieces, `width` at a time.
fn pieces(all: Range<usize>, width: usize) -> impl Iterator<Item = Range<usize>> {
    let firsts = all.clone().step_by(width);
    firsts.map(move |first| first..all.end.min(first + width))
}

/// The flag of a unit.
fn ready(unit: usize, from: usize, to: usize) -> String {
    format!("ready + {unit} from {from} to {to}")
}

/// What a consumer keeps of the number of the call.
fn number(rank: usize, block: usize) -> String {
    format!("kept by {rank}.{block}")
}

/// The barrier after which it has read that number.
fn counted(rank: usize, block: usize, call: u32) -> String {
    format!("{rank}.{block} counted call {call}")
}

/// A piece of the C of a rank.
fn result(piece: usize, rank: usize) -> String {
    format!("piece {piece} in C of {rank}")
}

#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::protocols::explore::{Orders, explore, is_wrong_data};

    /// Pieces of C and of a unit, pieces of a tile and blocks of each rank, calls.
    type Case = (usize, usize, &'static [usize], &'static [usize], u32);

    const CASES: [Case; 11] = [
        (1, 1, &[1, 1], &[1, 1], 5),
        // Two blocks have a unit, on both ranks or on one.
        (2, 2, &[1, 1], &[2, 2], 2),
        (2, 2, &[1, 1], &[2, 1], 4),
        (2, 2, &[2, 1], &[1, 2], 4),
        // One has a unit in two tiles; one has two units in a tile.
        (2, 2, &[1, 2], &[1, 1], 4),
        (2, 1, &[2, 1], &[1, 2], 4),
        (3, 2, &[1, 4], &[2, 1], 4),
        (4, 2, &[1, 2], &[2, 1], 4),
        // One has no tile.
        (1, 1, &[1, 1], &[2, 1], 4),
        (1, 1, &[1, 1, 1], &[1, 1, 1], 4),
        (2, 2, &[1, 2, 1], &[2, 1, 1], 3),
    ];

    fn model((pieces, unit, tiles, blocks, calls): Case, planted: Option<Planted>) -> Model {
        let shot = OneShot {
            pieces,
            unit,
            tiles,
            blocks,
            calls,
            overlapped: 2,
            planted,
        };
        shot.model()
    }

    /// Whether a unit has several tiles on a rank.
    fn has_tickets((pieces, unit, tiles, ..): Case) -> bool {
        tiles.iter().any(|&tile| tile < unit.min(pieces))
    }

    /// Whether a grid has several blocks.
    fn has_grids((.., blocks, _): Case) -> bool {
        blocks.iter().any(|&blocks| blocks > 1)
    }

    fn assert_found(planted: Planted, applies: impl Fn(Case) -> bool) {
        for case in CASES.into_iter().filter(|&case| applies(case)) {
            let found = explore(&model(case, Some(planted)), Orders::ALL);
            assert!(
                found.as_ref().is_err_and(|why| is_wrong_data(why)),
                "{planted:?}, {case:?}: {found:?}"
            );
        }
    }

    #[test]
    fn partials_are_read_after_their_flag_and_until_the_call_after_the_next() {
        for case in CASES {
            explore(&model(case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        for planted in [
            Planted::UnreadCall,
            Planted::OneStaging,
            Planted::BeforeArrival(Published::Partial),
            Planted::UnheardPeer,
            Planted::UnheardSelf,
        ] {
            assert_found(planted, |_| true);
        }
    }

    #[test]
    fn a_unit_is_published_by_the_last_to_take_a_ticket() {
        assert_found(Planted::BeforeLastTicket(Published::Partial), has_tickets);
    }

    #[test]
    fn a_call_is_counted_by_the_last_to_take_a_ticket() {
        assert_found(Planted::EarlyEpoch, has_grids);
    }

    #[test]
    fn every_order_of_memory_is_needed() {
        for case in CASES.into_iter().filter(|&case| has_grids(case)) {
            for orders in Orders::but_one() {
                let found = explore(&model(case, None), orders);
                assert!(
                    found.is_err_and(|why| is_wrong_data(&why)),
                    "{orders:?}, {case:?}"
                );
            }
        }
    }
}
