//! A rank whose wait fails, and a late rank.

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::fence;
use loom::thread;

use super::{Memory, Rank, Rules, value};
use crate::collective::host::group::{Member, Phase, barrier};

/// A call in which each of two ranks reads the other's row between the barriers, and changes its own once the
/// call has ended for it, with or without an error. The deadline of rank 0 passes at any time.
fn reads_between(rules: Rules) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.check(move || {
        let memory = Memory::new(2, 0, 2, 0);
        for (rank, faults) in memory.faults.iter().enumerate() {
            faults.row.0.store(value(rank, 1), Ordering::Relaxed);
        }
        let rank = |memory: &Arc<Memory>, rank| Rank {
            memory: memory.clone(),
            rank,
            rules,
            signature: 0,
        };
        let call = |place: &Rank| {
            let peer = 1 - place.rank;
            let mut right = barrier(place, Phase::Enter, 1);
            let row = match right {
                true => place.memory.faults[peer].row.0.load(Ordering::Relaxed),
                false => 0,
            };
            right &= barrier(place, Phase::Leave, 1);
            right &= !place.is_noticed();
            assert!(!right || row == value(peer, 1), "a wrong row and no error");
            // What follows the call on the host is ordered after all that its kernel did.
            fence(Ordering::SeqCst);
            let own = &place.faults().row.0;
            own.store(value(place.rank, 2), Ordering::Relaxed);
        };
        let (peer, deadline) = (rank(&memory, 1), memory.clone());
        let peer = thread::spawn(move || call(&peer));
        let deadline = thread::spawn(move || {
            deadline.faults[0].stopped.0.store(1, Ordering::Release);
        });
        call(&rank(&memory, 0));
        // A rank that waits for one that has left runs into its own deadline.
        memory.faults[1].stopped.0.store(1, Ordering::Release);
        peer.join().expect("every rank ends");
        deadline.join().expect("the deadline passes");
    });
}

#[test]
fn loom_a_late_rank_fails_or_reads_what_was_there() {
    reads_between(Rules::All);
}

/// Notices alone keep a late rank from stale rows. Silence alone does not: see the next model.
#[test]
fn loom_a_notice_is_enough_where_a_rank_goes_on_to_publish() {
    reads_between(Rules::Talkative);
}

#[test]
#[should_panic(expected = "a wrong row and no error")]
fn loom_without_checking_notices_a_late_rank_takes_wrong_rows() {
    reads_between(Rules::Blind);
}
