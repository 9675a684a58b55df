//! The all-gather GEMM by the eager protocol: `eager.cu`.

use super::{Model, Planted, Thread, begin, calls, end, peers, shard};

/// Who calls how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eager<'a> {
    /// Chunks of each rank's shard.
    pub chunks: &'a [usize],
    /// Of each rank's grid.
    pub blocks: &'a [usize],
    pub calls: u32,
    /// Whether a block pushes concurrently with the rest of its work, not before it.
    pub overlapped: bool,
    pub planted: Option<Planted>,
}

impl Eager<'_> {
    /// Who takes a ticket does so as soon as it may, and reads then: waiting for those without rows says
    /// nothing of a chunk of this call.
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        for rank in 0..self.chunks.len() {
            for block in 0..self.blocks[rank] {
                let all = self.blocks[rank];
                model.block(
                    (rank, block, all),
                    (self.calls, self.overlapped),
                    &[&|thread, call| self.push(thread, rank, block, call)],
                    [
                        &|thread, call| self.begin(thread, rank, block, call),
                        &|thread, call| {
                            self.take_ticket(thread, rank, block, call);
                            self.read(thread, rank, block, call);
                        },
                        &|thread, call| {
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

    /// The kernel begins after what the stream did before, which writes the shard. Block 0 stands for the
    /// stream.
    fn begin(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if block == 0 {
            for chunk in 0..self.chunks[rank] {
                thread.write(shard(chunk, rank), call);
            }
            thread.arrive(begin(rank, call));
        }
        thread.barrier_wait(begin(rank, call), 1);
        thread.keep(calls(rank), expected(rank, block));
    }

    /// The push warp (`push_chunk`). Who has no chunks gives the first flag all the same.
    fn push(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        thread.keep(calls(rank), sent(rank, block));
        thread.arrive(counted(rank, block, call));
        let chunks = self.chunks[rank];
        let early = self.planted == Some(Planted::FlagBeforeChunk);
        for chunk in (block..chunks.max(1)).step_by(self.blocks[rank]) {
            let signal = |thread: &mut Thread<'_>| {
                for peer in peers(rank, self.chunks.len()) {
                    thread.signal(arrived(chunk, rank, peer), sent(rank, block));
                }
            };
            if early {
                signal(thread);
            }
            if chunk < chunks {
                thread.read(shard(chunk, rank), call);
                for peer in peers(rank, self.chunks.len()) {
                    thread.push(self.staged(chunk, rank, peer, call), call);
                }
            }
            if !early {
                signal(thread);
            }
        }
    }

    /// The end of the kernel, after the barrier of the block.
    fn take_ticket(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        if self.planted != Some(Planted::UnreadCall) {
            thread.barrier_wait(counted(rank, block, call), 1);
        }
        let all = self.blocks[rank];
        thread.take_ticket(format!("of the grid of {rank}"), all, |last| {
            for peer in peers(rank, self.chunks.len()) {
                if self.chunks[peer] == 0 && self.planted != Some(Planted::NoWaitForNone) {
                    last.wait(arrived(0, peer, rank), expected(rank, block));
                }
            }
            last.advance(calls(rank));
        });
    }

    /// The waits for chunks and the loads, of a block with tiles of all chunks.
    fn read(&self, thread: &mut Thread<'_>, rank: usize, block: usize, call: u32) {
        for peer in peers(rank, self.chunks.len()) {
            for chunk in 0..self.chunks[peer] {
                thread.wait(arrived(chunk, peer, rank), expected(rank, block));
                thread.read(self.staged(chunk, peer, rank, call), call);
            }
        }
    }

    /// A chunk in the staging of `to` that the call takes.
    fn staged(&self, chunk: usize, from: usize, to: usize, call: u32) -> String {
        let staging = match self.planted {
            Some(Planted::OneStaging) => 0,
            _ => call % 2,
        };
        format!("chunk {chunk} from {from} in staging {staging} of {to}")
    }
}

/// The flag of a chunk.
fn arrived(chunk: usize, from: usize, to: usize) -> String {
    format!("chunk {chunk} from {from} to {to}")
}

/// What the push warp of a block keeps of the number of the call.
fn sent(rank: usize, block: usize) -> String {
    format!("sent by {rank}.{block}")
}

/// What the others of its threads keep of it.
fn expected(rank: usize, block: usize) -> String {
    format!("expected by {rank}.{block}")
}

/// The barrier after which a block's push warp has read that number.
fn counted(rank: usize, block: usize, call: u32) -> String {
    format!("push warp of {rank}.{block} counted call {call}")
}

#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::protocols::explore::{Orders, explore, is_wrong_data};

    /// Chunks of each rank, blocks, calls.
    type Case = (&'static [usize], &'static [usize], u32);

    const CASES: [Case; 8] = [
        (&[1, 1], &[2, 2], 3),
        (&[1, 0], &[1, 1], 3),
        (&[1, 0], &[2, 2], 3),
        (&[2, 1], &[2, 1], 4),
        (&[3, 2], &[1, 1], 4),
        (&[0, 2], &[3, 1], 3),
        (&[1, 1, 1], &[1, 1, 1], 4),
        (&[1, 0, 2], &[1, 2, 1], 3),
    ];

    fn model((chunks, blocks, calls): Case, planted: Option<Planted>) -> Model {
        let eager = Eager {
            chunks,
            blocks,
            calls,
            overlapped: true,
            planted,
        };
        eager.model()
    }

    #[test]
    fn rows_are_read_after_their_flag_and_until_the_call_after_the_next() {
        for case in CASES {
            explore(&model(case, None), Orders::ALL).unwrap();
        }
    }

    #[test]
    fn what_is_planted_is_found() {
        for planted in [
            Planted::UnreadCall,
            Planted::OneStaging,
            Planted::FlagBeforeChunk,
        ] {
            for case in CASES {
                let found = explore(&model(case, Some(planted)), Orders::ALL);
                assert!(
                    found.as_ref().is_err_and(|why| is_wrong_data(why)),
                    "{planted:?}, {case:?}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn those_without_rows_are_waited_for() {
        for case in CASES.into_iter().filter(|(chunks, ..)| chunks.contains(&0)) {
            let found = explore(&model(case, Some(Planted::NoWaitForNone)), Orders::ALL);
            // Wrong data, or a peer two calls ahead, whose flag is that of no call of this rank.
            assert!(found.is_err(), "{case:?}");
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
