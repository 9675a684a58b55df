//! Broken schedules in which something has no fixed order: signals, waits, collectives, streams.

use crate::fixtures::{MAIN, Pair, has_race, holds, only, pair, pipelines};
use warpweave_overlap::check::{Awaited, Sequence};
use warpweave_overlap::plan::{Collective, Placement, Plan, Role, StreamId, Transport};
use warpweave_overlap::{Violation, check};
use warpweave_symm_mem::DType;

#[test]
fn two_sources_for_one_flag() {
    let build = |signals_fork: bool| {
        pair(move |p| {
            let slot = p.builder.slot("go");
            let side = p.builder.fork();
            p.fill_output(MAIN);
            let (signals, waits) = if signals_fork {
                (side, MAIN)
            } else {
                (MAIN, side)
            };
            p.builder
                .signal(MAIN, slot, [p.peer])
                .signal(signals, slot, [p.peer]);
            p.builder
                .wait(MAIN, slot, [p.peer])
                .wait(waits, slot, [p.peer]);
            p.builder.join(side);
        })
    };
    for (fork, expected) in [(true, Sequence::Signals), (false, Sequence::Waits)] {
        let report = check(&build(fork), 3);
        let found = |v: &Violation| match v {
            Violation::Unordered {
                sequence,
                flag: Some(flag),
                ..
            } => *sequence == expected && flag.name == "go",
            _ => false,
        };
        assert!(
            !report.holds() && report.violations.iter().all(found),
            "{report}"
        );
    }
}

/// All-gathers into two buffers, on the streams given.
fn gathers(p: &mut Pair, order: [usize; 2], streams: [StreamId; 2], rows: [usize; 2]) {
    let all = [0, 1].map(|i| {
        p.builder.buffer(
            format!("all {i}"),
            Placement::Local,
            Role::Staging,
            DType::F32,
            (2 * rows[i], 4),
        )
    });
    let parts = [0, 1].map(|i| {
        p.builder.buffer(
            format!("part {i}"),
            Placement::Local,
            Role::Input,
            DType::F32,
            (rows[i], 4),
        )
    });
    for i in order {
        let (src, dst) = (p.builder.whole(parts[i]), p.builder.whole(all[i]));
        p.builder
            .collective(streams[i], Collective::AllGather, src, dst, Transport::Nccl);
    }
    p.fill_output(MAIN);
}

#[test]
fn collectives_in_different_orders() {
    holds(&check(&pair(|p| gathers(p, [0, 1], [MAIN; 2], [1, 2])), 3));
    let report = check(
        &pair(|p| gathers(p, [p.rank, p.peer], [MAIN; 2], [1, 2])),
        3,
    );
    assert!(
        matches!(
            only(&report),
            Violation::CollectiveMismatch {
                index: 0,
                ranks: [0, 1],
                ..
            }
        ),
        "{report}"
    );
}

#[test]
fn collectives_on_streams_that_race_each_other() {
    let report = check(
        &pair(|p| {
            let side = p.builder.fork();
            gathers(p, [0, 1], [MAIN, side], [1, 1]);
            p.builder.join(side);
        }),
        3,
    );
    assert!(!report.holds(), "{report}");
    assert!(
        report.violations.iter().all(|v| matches!(
            v,
            Violation::Unordered {
                sequence: Sequence::Collectives,
                flag: None,
                ..
            }
        )),
        "{report}"
    );
}

#[test]
fn a_collective_that_a_rank_never_enters() {
    let report = check(
        &pair(|p| {
            if p.rank == 0 {
                gathers(p, [0, 1], [MAIN; 2], [1, 1]);
            } else {
                p.fill_output(MAIN);
            }
        }),
        3,
    );
    let entry = |v: &Violation| match v {
        Violation::Deadlock {
            chain,
            closes_at: None,
            ..
        } => chain[0].awaits == [Awaited::Entry { rank: 1 }],
        _ => false,
    };
    assert!(report.violations.iter().any(entry), "{report}");
}

#[test]
fn a_collective_after_a_wait_for_its_peer() {
    let report = check(
        &pair(|p| {
            let slot = p.builder.slot("go");
            if p.rank == 1 {
                p.builder.wait(MAIN, slot, [0]);
            }
            gathers(p, [0, 1], [MAIN; 2], [1, 1]);
            if p.rank == 0 {
                p.builder.signal(MAIN, slot, [1]);
            }
        }),
        3,
    );
    let Violation::Deadlock {
        chain, closes_at, ..
    } = only(&report)
    else {
        panic!("{report}");
    };
    assert_eq!((chain.len(), *closes_at), (2, Some(0)), "{report}");
}

#[test]
fn streams_that_are_not_forked_or_not_joined() {
    let sound = pipelines(2);
    let without = |range: std::ops::Range<usize>| -> Vec<Plan> {
        let mut plans = sound.clone();
        for plan in &mut plans {
            plan.ops.drain(range.clone());
        }
        plans
    };
    let last = sound[0].ops.len();
    let report = check(&without(0..2), 3);
    let unforked = |v: &&Violation| matches!(v, Violation::UnforkedStream { stream: 1, .. });
    assert_eq!(
        report.violations.iter().filter(unforked).count(),
        2,
        "{report}"
    );
    assert!(
        has_race(&report),
        "the push may read last call's shard: {report}"
    );

    let report = check(&without(last - 2..last), 3);
    let unjoined = |v: &&Violation| matches!(v, Violation::UnjoinedStream { stream: 1, .. });
    assert_eq!(
        report.violations.iter().filter(unjoined).count(),
        2,
        "{report}"
    );
    assert!(
        has_race(&report),
        "the caller may overwrite the shard: {report}"
    );
}

/// A stream whose first wait can only be satisfied after the call has begun, by way of the peer. That orders
/// it, but a graph captured from stream 0 would not hold it.
#[test]
fn a_stream_that_only_a_peer_holds_back_is_not_forked() {
    let sound = pair(|p| {
        p.fill_output(MAIN);
        let aside = p.builder.fork();
        let [ready, done] = ["ready", "done"].map(|name| p.builder.slot(name));
        p.builder
            .signal(MAIN, ready, [p.peer])
            .wait(MAIN, ready, [p.peer])
            .signal(MAIN, done, [p.peer])
            .wait(aside, done, [p.peer])
            .join(aside);
    });
    holds(&check(&sound, 3));
    let mut unforked = sound.clone();
    for plan in &mut unforked {
        let aside = |op: &warpweave_overlap::plan::Op| op.stream.0 == 1;
        let first = plan.ops.iter().position(aside).expect("it waits");
        plan.ops.remove(first);
    }
    let report = check(&unforked, 3);
    let loose = |v: &Violation| matches!(v, Violation::UnforkedStream { stream: 1, .. });
    assert!(report.violations.iter().any(loose), "{report}");
}
