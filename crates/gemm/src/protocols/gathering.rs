//! The product that gathers: `all_gather.cuh`.

use super::{Model, Planted, Thread};

/// Who calls how often. A block sends one piece of each chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gathering<'a> {
    /// Chunks of each rank's shard.
    pub chunks: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    pub planted: Option<Planted>,
}

impl Gathering<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.chunks.len() {
            for block in 0..self.blocks[rank] {
                let reads = self.peers(rank).any(|peer| self.chunks[peer] > 0);
                if self.chunks[rank] > 0 && reads {
                    model.thread(|sender| {
                        for call in 1..=self.calls {
                            self.send(sender, rank, block, call);
                            sender.arrive(format!("of {rank}.{block} in call {call}"));
                            sender.meet(end(rank, call), self.blocks[rank]);
                        }
                    });
                }
                // A block with one thing to do needs one thread.
                model.thread(|thread| {
                    for call in 1..=self.calls {
                        if !reads {
                            self.send(thread, rank, block, call);
                        }
                        self.read(thread, rank, call);
                        if self.chunks[rank] > 0
                            && reads
                            && self.planted != Some(Planted::UnmetBlock)
                        {
                            thread.meet(format!("of {rank}.{block} in call {call}"), 1);
                        }
                        self.end(thread, rank, block);
                        thread.arrive(end(rank, call));
                        thread.meet(end(rank, call), self.blocks[rank]);
                    }
                });
            }
        }
        model
    }

    fn peers(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let world = self.chunks.len();
        (1..world).map(move |step| (rank + step) % world)
    }

    /// `Gather::send`, one thread of a block.
    fn send(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        for chunk in 0..self.chunks[rank] {
            for peer in self.peers(rank) {
                if chunk == 0 && self.planted != Some(Planted::NoCredit) {
                    thread.wait(free(peer, rank), expected(free(peer, rank)), 1);
                }
                let word = ready(chunk, rank, peer);
                thread.part(
                    (word.clone(), self.blocks[rank]),
                    (self.planted, block),
                    |thread| thread.write(piece(chunk, rank, peer, block), call),
                    |last| {
                        last.signal(word.clone(), sent(word.clone()));
                        last.advance(sent(word.clone()));
                    },
                );
            }
        }
    }

    /// `Gather::before_loads` and the loads, of a block with tiles of all chunks.
    fn read(&self, thread: &mut Thread<'_>, rank: usize, call: u32) {
        for peer in self.peers(rank) {
            for chunk in 0..self.chunks[peer] {
                let word = ready(chunk, peer, rank);
                thread.wait(word.clone(), expected(word), 0);
                for block in 0..self.blocks[peer] {
                    thread.read(piece(chunk, peer, rank, block), call);
                }
            }
        }
    }

    /// `Gather::behind_all`.
    fn end(&self, thread: &mut Thread<'_>, rank: usize, block: usize) {
        let advance = |thread: &mut Thread<'_>, peer: usize| {
            for chunk in 0..self.chunks[peer] {
                thread.advance(expected(ready(chunk, peer, rank)));
            }
            thread.advance(expected(free(peer, rank)));
        };
        let give = |thread: &mut Thread<'_>, peer: usize| {
            thread.signal(free(rank, peer), sent(free(rank, peer)));
            thread.advance(sent(free(rank, peer)));
        };
        let early = |planted: Planted| self.planted == Some(planted);
        for peer in self.peers(rank).filter(|_| block == 0) {
            if early(Planted::EarlyEpoch) {
                advance(thread, peer);
            }
            if early(Planted::CreditBeforeLastDraw) {
                give(thread, peer);
            }
        }
        thread.draw(
            format!("of the grid of {rank}"),
            self.blocks[rank],
            |last| {
                for peer in self.peers(rank) {
                    if !early(Planted::EarlyEpoch) {
                        advance(last, peer);
                    }
                    if !early(Planted::CreditBeforeLastDraw) {
                        give(last, peer);
                    }
                }
            },
        );
    }
}

fn ready(chunk: usize, from: usize, to: usize) -> String {
    format!("ready + {chunk} from {from} to {to}")
}

fn free(from: usize, to: usize) -> String {
    format!("free from {from} to {to}")
}

fn sent(word: String) -> String {
    format!("sent {word}")
}

fn expected(word: String) -> String {
    format!("expected {word}")
}

/// What a block sends of a chunk, in the staging of `to`.
fn piece(chunk: usize, from: usize, to: usize, block: usize) -> String {
    format!("chunk {chunk} from {from} to {to} by {block}")
}

fn end(rank: usize, call: u32) -> String {
    format!("end of call {call} on {rank}")
}

#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::protocols::explore::{Orders, explore, is_wrong_data};

    /// Chunks of each rank, blocks, calls.
    type Case = (&'static [usize], &'static [usize], u32);

    const CASES: [Case; 6] = [
        (&[1, 1], &[2, 2], 2),
        (&[1, 0], &[2, 2], 3),
        (&[2, 1], &[2, 1], 2),
        (&[2, 2], &[1, 1], 3),
        (&[1, 1, 1], &[1, 1, 1], 2),
        (&[1, 0, 2], &[1, 2, 1], 3),
    ];

    fn model((chunks, blocks, calls): Case, planted: Option<Planted>) -> Model {
        let gathering = Gathering {
            chunks,
            blocks,
            calls,
            planted,
        };
        gathering.model()
    }

    #[test]
    fn rows_are_read_between_their_word_and_their_credit() {
        for case in CASES {
            explore(&model(case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        for planted in [
            Planted::NoCredit,
            Planted::SignalBeforeLastDraw,
            Planted::SignalBeforeArrival,
            Planted::CreditBeforeLastDraw,
            Planted::EarlyEpoch,
            Planted::UnmetBlock,
        ] {
            let found = explore(&model(CASES[0], Some(planted)), Orders::ALL);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{planted:?}");
        }
    }

    #[test]
    fn every_order_of_memory_is_needed() {
        let all = Orders::ALL;
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
            let found = explore(&model(CASES[0], None), orders);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{orders:?}");
        }
    }
}
