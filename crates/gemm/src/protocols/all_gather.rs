//! The all-gather GEMM: `all_gather.cu`.

use super::{Model, Planted, Published, Thread, begin, end, peers, shard};

/// Who calls how often. A block pulls one piece of each chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllGather<'a> {
    /// Chunks of each rank's shard.
    pub chunks: &'a [usize],
    /// How many of these are pushed, from the first.
    pub pushed: usize,
    /// Whether the launch copies its rank's rows to where the others read them.
    pub copies: bool,
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Whether a block pulls during its GEMM, not before it.
    pub overlapped: bool,
    pub planted: Option<Planted>,
}

impl AllGather<'_> {
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.chunks.len() {
            let reads = peers(rank, self.chunks.len()).any(|peer| self.chunks[peer] > 0);
            if self.pushes(rank) {
                model.thread(rank, |engine| self.push(engine, rank));
            }
            for block in 0..self.blocks[rank] {
                let all = self.all(rank);
                model.block(
                    (rank, block, all),
                    (self.calls, self.overlapped && reads),
                    &[&|thread, call| self.pull(thread, rank, block, call)],
                    [
                        &|thread, call| self.begin(thread, rank, block, call),
                        &|thread, call| self.read(thread, rank, call),
                        &|thread, call| {
                            self.end(thread, rank);
                            thread.arrive(end(rank, call));
                            thread.barrier_wait(end(rank, call), all);
                            if block == 0 {
                                thread.check();
                            }
                        },
                    ],
                );
            }
        }
        model
    }

    fn pushes(&self, rank: usize) -> bool {
        self.pushed.min(self.chunks[rank]) > 0
    }

    /// Whether a rank signals that its shard may be read.
    fn opens(&self, rank: usize) -> bool {
        self.pushed == 0 || self.pushes(rank)
    }

    /// Whose end the next call waits for: the blocks, and the copy engines.
    fn all(&self, rank: usize) -> usize {
        self.blocks[rank] + usize::from(self.pushes(rank))
    }

    /// What the copy engines of a rank do while its kernel runs.
    fn push(&self, engine: &mut Thread<'_>, rank: usize) {
        for call in 1..=self.calls {
            engine.barrier_wait(begin(rank, call), 1);
            for peer in peers(rank, self.chunks.len()) {
                for chunk in 0..self.pushed.min(self.chunks[rank]) {
                    engine.read(shard(chunk, rank), call);
                    engine.write(pushed_chunk(chunk, rank, peer), call);
                }
                engine.signal(ready(rank, peer), sent(ready(rank, peer)));
                engine.advance(sent(ready(rank, peer)));
            }
            engine.arrive(end(rank, call));
            engine.barrier_wait(end(rank, call), self.all(rank));
        }
    }

    /// The kernel begins after what the stream did before, which writes the shard. Block 0 stands for the
    /// stream, and opens the shard, unless the copy engines do.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            for chunk in 0..self.chunks[rank] {
                thread.write(shard(chunk, rank), call);
            }
            thread.arrive(begin(rank, call));
            if self.pushed == 0 && !self.copies {
                self.open(thread, rank);
            }
        }
        thread.barrier_wait(begin(rank, call), 1);
    }

    fn open(&self, thread: &mut Thread<'_>, rank: usize) {
        for peer in peers(rank, self.chunks.len()) {
            thread.signal(ready(rank, peer), sent(ready(rank, peer)));
            thread.advance(sent(ready(rank, peer)));
        }
    }

    /// What others read of a chunk.
    fn opened(&self, chunk: usize, rank: usize) -> Vec<String> {
        match self.copies {
            true => (0..self.blocks[rank])
                .map(|block| copied(chunk, rank, block))
                .collect(),
            false => vec![shard(chunk, rank)],
        }
    }

    /// A block's pull warp: copies its share of the rank's rows (`copy_share`), waits for `ready`, pulls
    /// (`pull_share`), signals `done`.
    fn pull(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if self.copies {
            thread.part(
                (format!("of the copies of {rank}"), self.blocks[rank]),
                Published::Copy,
                (self.planted, block),
                |thread| {
                    for chunk in 0..self.chunks[rank] {
                        thread.read(shard(chunk, rank), call);
                        thread.write(copied(chunk, rank, block), call);
                    }
                },
                |last| self.open(last, rank),
            );
        }
        // Those without rows give their flags too. Loom is spared them, since it prunes a branch where a poll
        // fails.
        for peer in peers(rank, self.chunks.len()) {
            if self.opens(peer) && (!cfg!(loom) || self.chunks[peer] > 0) {
                thread.wait(ready(peer, rank), expected(ready(peer, rank)));
            }
        }
        for chunk in self.pushed..self.most_chunks(rank) {
            let early = self.planted == Some(Planted::CountBeforeArrival);
            if early {
                thread.arrive(arrived(chunk, rank));
            }
            for peer in peers(rank, self.chunks.len()).filter(|&peer| chunk < self.chunks[peer]) {
                for opened in self.opened(chunk, peer) {
                    thread.read(opened, call);
                }
                thread.write(piece(chunk, peer, rank, block), call);
            }
            if !early {
                thread.arrive(arrived(chunk, rank));
            }
        }
        if !self.pullers_end() {
            return;
        }
        thread.part(
            (format!("of the pullers of {rank}"), self.blocks[rank]),
            Published::Done,
            (self.planted, block),
            |_| {},
            |last| self.release(last, rank),
        );
    }

    /// Chunks of the largest shard of a peer.
    fn most_chunks(&self, rank: usize) -> usize {
        let peers = peers(rank, self.chunks.len());
        peers.map(|peer| self.chunks[peer]).max().unwrap_or(0)
    }

    /// Whether peers have what they want back once everything is pulled.
    fn pullers_end(&self) -> bool {
        self.pushed == 0 || self.planted == Some(Planted::DoneAfterPulling)
    }

    fn release(&self, thread: &mut Thread<'_>, rank: usize) {
        for peer in peers(rank, self.chunks.len()) {
            thread.signal(done(rank, peer), sent(done(rank, peer)));
            thread.advance(sent(done(rank, peer)));
        }
    }

    /// The load warp (`RowWaits`), of a block with tiles of all chunks.
    fn read(&self, thread: &mut Thread<'_>, rank: usize, call: u32) {
        for peer in peers(rank, self.chunks.len()) {
            if self.pushes(peer) {
                thread.wait(ready(peer, rank), expected(ready(peer, rank)));
            }
            for chunk in 0..self.pushed.min(self.chunks[peer]) {
                thread.read(pushed_chunk(chunk, peer, rank), call);
            }
            for chunk in self.pushed..self.chunks[peer] {
                let blocks = self.blocks[rank];
                thread.barrier_wait(arrived(chunk, rank), blocks * call as usize);
                for block in 0..blocks {
                    thread.read(piece(chunk, peer, rank, block), call);
                }
            }
        }
    }

    /// The end of the kernel, where the last block ends the call.
    fn end(&self, thread: &mut Thread<'_>, rank: usize) {
        thread.take_ticket(
            format!("of the grid of {rank}"),
            self.blocks[rank],
            |last| {
                if !self.pullers_end() {
                    self.release(last, rank);
                }
                for peer in peers(rank, self.chunks.len()) {
                    if self.opens(peer) {
                        last.advance(expected(ready(peer, rank)));
                    }
                    let done = done(peer, rank);
                    if self.planted != Some(Planted::NoDone) {
                        last.wait(done.clone(), expected(done.clone()));
                    }
                    last.advance(expected(done));
                }
            },
        );
    }
}

fn ready(from: usize, to: usize) -> String {
    format!("ready from {from} to {to}")
}

fn done(from: usize, to: usize) -> String {
    format!("done from {from} to {to}")
}

fn sent(flag: String) -> String {
    format!("sent {flag}")
}

fn expected(flag: String) -> String {
    format!("expected {flag}")
}

/// The counter of the blocks whose pieces of a chunk, of all peers, lie in the staging of `to`.
fn arrived(chunk: usize, to: usize) -> String {
    format!("arrivals of chunk {chunk} to {to}")
}

/// A chunk that the copy engines of a rank write into the staging of `to`.
fn pushed_chunk(chunk: usize, from: usize, to: usize) -> String {
    format!("chunk {chunk} pushed from {from} to {to}")
}

/// What a block copies of a chunk of its rank, for the others.
fn copied(chunk: usize, rank: usize, block: usize) -> String {
    format!("copy of chunk {chunk} of {rank} by {block}")
}

/// What a block pulls of a chunk, in the staging of `to`.
fn piece(chunk: usize, from: usize, to: usize, block: usize) -> String {
    format!("chunk {chunk} from {from} to {to} by {block}")
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
        (&[1, 0, 2], &[1, 2, 1], 2),
    ];

    /// One or all of whose chunks are pushed.
    const PUSHED: [Case; 4] = [
        (&[1, 1], &[1, 1], 2),
        (&[1, 0], &[2, 2], 2),
        (&[2, 1], &[1, 1], 2),
        (&[2, 0], &[2, 2], 2),
    ];

    fn all_gather((chunks, blocks, calls): Case, planted: Option<Planted>) -> AllGather<'static> {
        AllGather {
            chunks,
            pushed: 0,
            copies: false,
            blocks,
            calls,
            overlapped: true,
            planted,
        }
    }

    fn model(case: Case, planted: Option<Planted>) -> Model {
        all_gather(case, planted).model()
    }

    fn pushing(pushed: usize, case: Case, planted: Option<Planted>) -> Model {
        let pushing = AllGather {
            pushed,
            ..all_gather(case, planted)
        };
        pushing.model()
    }

    fn copying(case: Case, planted: Option<Planted>) -> Model {
        let copying = AllGather {
            copies: true,
            ..all_gather(case, planted)
        };
        copying.model()
    }

    #[test]
    fn rows_are_read_between_the_flags() {
        for case in CASES {
            explore(&model(case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn rows_that_are_copied_are_read_between_the_flags() {
        for case in CASES {
            explore(&copying(case, None), Orders::ALL).unwrap();
        }
        for planted in [
            Planted::NoDone,
            Planted::BeforeArrival(Published::Copy),
            Planted::BeforeLastTicket(Published::Copy),
        ] {
            let found = explore(&copying(CASES[0], Some(planted)), Orders::ALL);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{planted:?}");
        }
    }

    #[test]
    fn rows_that_are_pushed_are_read_between_the_flags() {
        for case in PUSHED {
            explore(&pushing(1, case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn a_rank_that_has_pulled_everything_may_still_read_what_was_pushed() {
        for case in PUSHED {
            let early = pushing(1, case, Some(Planted::DoneAfterPulling));
            let found = explore(&early, Orders::ALL);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{case:?}");
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        for planted in [
            Planted::NoDone,
            Planted::BeforeLastTicket(Published::Done),
            Planted::CountBeforeArrival,
        ] {
            let found = explore(&model(CASES[0], Some(planted)), Orders::ALL);
            assert!(found.is_err_and(|why| is_wrong_data(&why)), "{planted:?}");
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
