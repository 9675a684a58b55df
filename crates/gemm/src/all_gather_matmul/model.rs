//! A model of the words, tickets and counters of the device, for loom: `RUSTFLAGS="--cfg loom" cargo test --lib loom_`.
//!
//! Rank s sends a chunk of two pieces, one from each of its blocks, to rank r, whose two blocks read both. The steps and their
//! memory orders are those of `cuda/sm90/all_gather.cuh`; a piece of memory that loom watches stands for what the async proxy
//! writes and reads, whose fences loom does not know.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use warpweave_symm_mem::pad::word::reached;

const CALLS: u32 = 2;
const BLOCKS: u32 = 2;
/// So that epochs go round.
const START: u32 = u32::MAX;

/// A rank's half of the protocol: its own counters, and the word that its peer writes.
struct Half {
    /// What the peer writes.
    word: AtomicU32,
    expected: AtomicU32,
    sent: AtomicU32,
    /// Drawn by each block that has sent its pieces of the chunk.
    chunk_ticket: AtomicU32,
    /// Drawn by each block at its end.
    end_ticket: AtomicU32,
    /// Blocks that have ended, over all calls: the next launch of a stream begins behind the last.
    ended: AtomicU32,
}

impl Half {
    fn new() -> Self {
        Half {
            word: AtomicU32::new(START),
            expected: AtomicU32::new(START),
            sent: AtomicU32::new(START),
            chunk_ticket: AtomicU32::new(0),
            end_ticket: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        }
    }

    /// `wait_epoch` with the epoch `behind` that which was last waited for.
    fn wait(&self, behind: u32) {
        let wanted = self.expected.load(Ordering::Relaxed).wrapping_add(behind);
        while !reached(self.word.load(Ordering::Acquire), wanted) {
            thread::yield_now();
        }
    }

    /// `advance_expected`.
    fn advance(&self) {
        let before = self.expected.load(Ordering::Relaxed);
        self.expected
            .store(before.wrapping_add(1), Ordering::Relaxed);
    }

    /// `signal_peer`.
    fn signal(&self, peer: &Half) {
        let epoch = self.sent.load(Ordering::Relaxed).wrapping_add(1);
        peer.word.store(epoch, Ordering::Release);
        self.sent.store(epoch, Ordering::Relaxed);
    }

    /// The end of a launch, which the next one of the stream waits for.
    fn end_launch(&self, call: u32) {
        self.ended.fetch_add(1, Ordering::AcqRel);
        while self.ended.load(Ordering::Acquire) < BLOCKS * (call + 1) {
            thread::yield_now();
        }
    }
}

/// `draw_last`: a counter that goes round behind its last draw.
fn draw_last(ticket: &AtomicU32) -> bool {
    let round = |before| Some(if before == BLOCKS - 1 { 0 } else { before + 1 });
    let before = ticket.fetch_update(Ordering::AcqRel, Ordering::Acquire, round);
    before.is_ok_and(|before| before == BLOCKS - 1)
}

struct Ranks {
    sender: Half,
    reader: Half,
    /// The reader's staging: the call whose rows each piece has.
    staging: [UnsafeCell<u32>; BLOCKS as usize],
}

/// A block of the sending rank: `send`, and its part of `behind_all`.
fn send(ranks: &Ranks, block: u32, announce_early: bool) {
    let (own, peer) = (&ranks.sender, &ranks.reader);
    for call in 0..CALLS {
        own.wait(0);
        if announce_early && draw_last(&own.chunk_ticket) {
            own.signal(peer);
        }
        ranks.staging[block as usize].with_mut(|piece| {
            // SAFETY: loom reports every access that is not ordered with the others.
            unsafe { *piece = call + 1 }
        });
        if !announce_early && draw_last(&own.chunk_ticket) {
            own.signal(peer);
        }
        if draw_last(&own.end_ticket) {
            own.advance();
        }
        own.end_launch(call);
    }
}

/// A block of the reading rank: `before_loads`, its loads, and its part of `behind_all`.
fn read(ranks: &Ranks) {
    let (own, peer) = (&ranks.reader, &ranks.sender);
    for call in 0..CALLS {
        own.wait(1);
        for piece in &ranks.staging {
            piece.with(|piece| {
                // SAFETY: as above.
                unsafe { assert_eq!(*piece, call + 1, "rows of another call") }
            });
        }
        if draw_last(&own.end_ticket) {
            own.advance();
            own.signal(peer);
        }
        own.end_launch(call);
    }
}

fn explore(announce_early: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let ranks = Arc::new(Ranks {
            sender: Half::new(),
            reader: Half::new(),
            staging: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let spawned = [
            {
                let ranks = ranks.clone();
                thread::spawn(move || send(&ranks, 0, announce_early))
            },
            {
                let ranks = ranks.clone();
                thread::spawn(move || send(&ranks, 1, announce_early))
            },
            {
                let ranks = ranks.clone();
                thread::spawn(move || read(&ranks))
            },
        ];
        read(&ranks);
        for block in spawned {
            block.join().unwrap();
        }
    });
}

#[test]
fn loom_rows_are_read_between_their_word_and_their_credit() {
    explore(false);
}

/// The model sees what the protocol rules out.
#[test]
#[should_panic]
fn loom_a_word_before_its_rows_is_caught() {
    explore(true);
}
