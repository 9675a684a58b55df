//! Barriers: what they keep apart, and ranks that make different calls.

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::thread;

use super::{Memory, Rank, Rules, explore, value};
use crate::collective::host::group::{Member, Phase, barrier};

/// Every rank writes to the next one's memory between the barriers and reads its own after them.
fn writes_between(phases: &[Phase], place: &Rank, first: u32, calls: u32) {
    let (rank, world) = (place.rank(), place.world());
    for call in 1..=calls {
        let epoch = first.wrapping_add(call);
        if phases.contains(&Phase::Enter) {
            assert!(barrier(place, Phase::Enter, epoch));
        }
        // SAFETY: loom checks it.
        place.memory.cells[(rank + 1) % world]
            .with_mut(|cell| unsafe { *cell = value(rank, call) });
        if phases.contains(&Phase::Leave) {
            assert!(barrier(place, Phase::Leave, epoch));
        }
        // SAFETY: as above.
        place.memory.cells[rank].with(|cell| {
            let got = unsafe { *cell };
            assert_eq!(
                got,
                value((rank + world - 1) % world, call),
                "read too early"
            );
        });
    }
}

const BOTH: &[Phase] = &[Phase::Enter, Phase::Leave];

#[test]
fn loom_barriers_keep_calls_apart() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(BOTH, place, 0, 3),
    );
}

#[test]
fn loom_barriers_wrap_around() {
    explore(
        2,
        || Memory::new(2, 0, 2, u32::MAX - 1),
        |place| writes_between(BOTH, place, u32::MAX - 1, 3),
    );
}

/// Launches without barriers have not written the flags for half a turn.
#[test]
fn loom_flags_of_long_ago_do_not_count() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(BOTH, place, 1 << 31, 2),
    );
}

#[test]
fn loom_three_ranks_at_a_barrier() {
    explore(
        0,
        || Memory::new(3, 0, 2, 0),
        |place| {
            let cells = &place.memory.cells;
            // SAFETY: loom checks it.
            cells[place.rank()].with_mut(|cell| unsafe { *cell = value(place.rank(), 1) });
            assert!(barrier(place, Phase::Enter, 1));
            for peer in place.peers() {
                // SAFETY: as above.
                cells[peer].with(|cell| assert_eq!(unsafe { *cell }, value(peer, 1)));
            }
        },
    );
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_the_first_barrier_an_output_is_overwritten_while_read() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(&[Phase::Leave], place, 0, 2),
    );
}

#[test]
#[should_panic(expected = "read too early")]
fn loom_without_the_second_barrier_an_output_is_read_too_early() {
    explore(
        2,
        || Memory::new(2, 0, 2, 0),
        |place| writes_between(&[Phase::Enter], place, 0, 1),
    );
}

/// Calls back to back that meet at one barrier each, with a signature of their own.
fn signed_calls(place: &Rank, first: u32, calls: u32) {
    for call in 1..=calls {
        let place = place.calls(call);
        assert!(barrier(&place, Phase::Enter, first.wrapping_add(call)));
    }
}

#[test]
fn loom_signatures_of_calls_back_to_back_stay_apart() {
    for first in [0, u32::MAX - 1] {
        explore(
            2,
            move || Memory::new(2, 0, 2, first),
            move |place| signed_calls(place, first, 3),
        );
    }
}

/// A rank that goes on overwrites the signature that its peer is about to read.
#[test]
#[should_panic(expected = "never brings")]
fn loom_with_one_signature_the_next_call_is_taken_for_another() {
    explore(
        2,
        || Memory::new(2, 0, 1, 0),
        |place| signed_calls(place, 0, 2),
    );
}

/// Two ranks that make different calls: neither goes past the barrier, whoever comes first.
#[test]
fn loom_no_rank_passes_a_barrier_with_one_that_makes_another_call() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(|| {
        let memory = Memory::new(2, 0, 2, 0);
        let call = |memory: &Arc<Memory>, rank: usize| {
            let place = Rank {
                memory: memory.clone(),
                rank,
                rules: Rules::All,
                signature: 7,
            };
            assert!(barrier(&place, Phase::Enter, 1), "the call before");
            let place = place.calls(rank as u32);
            assert!(!barrier(&place, Phase::Enter, 2), "a wrong pair");
            assert_eq!(place.faults().stopped.0.load(Ordering::Relaxed), 1);
        };
        let theirs = memory.clone();
        let peer = thread::spawn(move || call(&theirs, 1));
        call(&memory, 0);
        peer.join().expect("every rank ends");
    });
}
