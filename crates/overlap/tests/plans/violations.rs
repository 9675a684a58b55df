//! One broken schedule for each thing that *check* finds once the plans of all ranks are unrolled.

use crate::fixtures::{MAIN, Pair, has_deadlock, has_race, holds, only, pair, plans, problem};
use crate::interpreter::replay;
use warpweave_overlap::check::{AccessKind, Awaited};
use warpweave_overlap::plan::{OpKind, Plan};
use warpweave_overlap::{Violation, algorithms, check};

/// Puts the input into the peer's mailbox and takes what came; complete if `credit`.
fn exchange(p: &mut Pair, credit: bool) {
    let [sent, taken] = ["sent", "taken"].map(|name| p.builder.slot(name));
    let (src, dst) = (p.at(p.rank, p.input), p.at(p.peer, p.mailbox));
    let (arrived, out) = (p.at(p.rank, p.mailbox), p.at(p.rank, p.output));
    if credit {
        p.builder.wait_credit(MAIN, taken, [p.peer]);
    }
    p.builder
        .copy(MAIN, src, dst)
        .signal(MAIN, sent, [p.peer])
        .wait(MAIN, sent, [p.peer])
        .copy(MAIN, arrived, out);
    if credit {
        p.builder.signal(MAIN, taken, [p.peer]);
    }
}

#[test]
fn a_race_between_calls() {
    holds(&check(&pair(|p| exchange(p, true)), 3));
    let plans = pair(|p| exchange(p, false));
    let report = check(&plans, 3);
    replay(&plans, &report);
    let races: Vec<_> = report
        .violations
        .iter()
        .map(|v| match v {
            Violation::Race {
                first,
                second,
                occurrences,
                ..
            } => {
                let side = |t: &warpweave_overlap::check::Touch| (t.step.rank, t.step.call, t.kind);
                (side(first), side(second), *occurrences)
            }
            other => panic!("{other}"),
        })
        .collect();
    // The read of one call against the peer's write of the next, between calls 1 and 2 and between calls 2
    // and 3.
    let expected = |reader: usize| {
        (
            (reader, 1, AccessKind::Read),
            (1 - reader, 2, AccessKind::Write),
            2,
        )
    };
    assert_eq!(races, [expected(0), expected(1)]);
}

#[test]
fn a_race_within_a_call() {
    let plans = pair(|p| {
        let (src, dst) = (p.at(p.rank, p.input), p.at(p.peer, p.mailbox));
        p.builder.copy(MAIN, src.clone(), dst);
        let own = p.at(p.rank, p.mailbox);
        p.builder.copy(MAIN, src, own);
        p.fill_output(MAIN);
    });
    let report = check(&plans, 1);
    assert!(has_race(&report), "{report}");
    replay(&plans, &report);
}

#[test]
fn a_race_on_the_callers_input() {
    // Without the handshake at the end, the caller overwrites A under its peers' loads.
    let mut plans = plans(
        &algorithms::find("naiveRemoteRead").unwrap(),
        2,
        &problem(4),
    );
    for op in plans.iter_mut().flat_map(|p| &mut p.ops) {
        let OpKind::Kernel { lanes, .. } = &mut op.kind else {
            continue;
        };
        let [_, theirs] = [0, 1].map(|i| lanes[i].len() > lanes[1 - i].len());
        lanes[usize::from(theirs)].truncate(5);
    }
    let report = check(&plans, 3);
    replay(&plans, &report);
    assert!(
        report.violations.iter().all(|v| matches!(
            v,
            Violation::Race { second, .. } if second.step.text.contains("the caller overwrites")
        )),
        "{report}"
    );
    assert_eq!(report.violations.len(), 2, "{report}");
}

#[test]
fn boxes_that_do_not_overlap_do_not_race() {
    let halves = |apart: bool| {
        pair(move |p| {
            let half = if apart { 2 * p.rank } else { p.rank };
            let cols = half..half + 2;
            let src = p.builder.own(p.input, 0..1, cols.clone());
            let dst = p.builder.on(0, p.mailbox, 0..1, cols);
            p.builder.copy(MAIN, src, dst);
            p.fill_output(MAIN);
        })
    };
    holds(&check(&halves(true), 3));
    assert!(has_race(&check(&halves(false), 3)));
}

#[test]
fn a_cycle_of_waits() {
    let plans = pair(|p| {
        let slot = p.builder.slot("go");
        p.fill_output(MAIN);
        p.builder
            .wait(MAIN, slot, [p.peer])
            .signal(MAIN, slot, [p.peer]);
    });
    let report = check(&plans, 3);
    let Violation::Deadlock {
        blocked,
        chain,
        closes_at,
    } = only(&report)
    else {
        panic!("{report}");
    };
    assert_eq!(
        (blocked.len(), chain.len(), *closes_at),
        (2, 2, Some(0)),
        "{report}"
    );
    assert_eq!([chain[0].step.rank, chain[1].step.rank], [0, 1]);
    assert!(matches!(
        &chain[0].awaits[..],
        [Awaited::Signal { needs: 1, sees: 0, flag }] if (flag.src, flag.dst) == (1, 0)
    ));
}

#[test]
fn a_wait_for_a_signal_that_never_comes() {
    let plans = pair(|p| {
        let slot = p.builder.slot("go");
        p.fill_output(MAIN);
        if p.rank == 1 {
            p.builder.wait_credit(MAIN, slot, [0]);
        }
    });
    let report = check(&plans, 3);
    let [
        Violation::UnmatchedSignal {
            flag,
            signals: 0,
            waits: 1,
        },
        Violation::Deadlock {
            blocked,
            chain,
            closes_at: None,
        },
    ] = &report.violations[..]
    else {
        panic!("{report}");
    };
    assert_eq!((flag.src, flag.dst, flag.name.as_str()), (0, 1, "go"));
    // The credit of the first call is free, so it is the second that hangs.
    assert_eq!((blocked.len(), chain.len()), (1, 1));
    assert_eq!((chain[0].step.rank, chain[0].step.call), (1, 2));
}

#[test]
fn a_signal_that_nobody_waits_for() {
    let report = check(
        &pair(|p| {
            let slot = p.builder.slot("go");
            p.fill_output(MAIN);
            p.builder.signal(MAIN, slot, [p.peer]);
        }),
        3,
    );
    let unmatched = |v: &Violation| {
        matches!(
            v,
            Violation::UnmatchedSignal {
                signals: 1,
                waits: 0,
                ..
            }
        )
    };
    assert_eq!(
        report.violations.iter().filter(|v| unmatched(v)).count(),
        2,
        "{report}"
    );
    assert_eq!(report.violations.len(), 2);
}

#[test]
fn reads_of_what_nobody_wrote() {
    let report = check(
        &pair(|p| {
            let [src, dst] = [p.mailbox, p.output].map(|b| p.builder.whole(b));
            p.builder.copy(MAIN, src, dst);
        }),
        3,
    );
    let unwritten = |v: &Violation| matches!(v, Violation::Unwritten { .. });
    assert!(report.violations.iter().all(unwritten), "{report}");
    assert_eq!(report.violations.len(), 2);
}

#[test]
fn outputs_that_are_not_written_whole() {
    let report = check(
        &pair(|p| {
            for cols in [0..1, 2..4] {
                let src = p.builder.own(p.input, 0..1, cols.clone());
                let dst = p.builder.own(p.output, 0..1, cols);
                p.builder.copy(MAIN, src, dst);
            }
        }),
        3,
    );
    let [Violation::Unwritten { read, missing }, _] = &report.violations[..] else {
        panic!("{report}");
    };
    assert!(read.step.text.contains("the caller reads"));
    assert_eq!(missing, &["out@0[0..1, 1..2]"]);
}

#[test]
fn plans_that_do_not_belong_together() {
    let sound = || pair(|p| exchange(p, true));
    let disagree = |plans: &[Plan]| {
        let report = check(plans, 3);
        let disagreement = |v: &Violation| matches!(v, Violation::Disagreement { .. });
        assert!(
            !report.holds() && report.violations.iter().all(disagreement),
            "{report}"
        );
        assert_eq!(report.steps, 0);
    };
    disagree(&[]);
    disagree(&sound()[..1]);
    disagree(&[sound()[0].clone(), sound()[0].clone()]);
    let changed = |change: fn(&mut Plan)| {
        let mut plans = sound();
        change(&mut plans[1]);
        plans
    };
    disagree(&changed(|p| p.name = "other".into()));
    disagree(&changed(|p| p.slots[0].name = "other".into()));
    disagree(&changed(|p| p.buffers[1].name = "other".into()));
    disagree(&changed(|p| p.buffers[1].rows += 1));
    // Local buffers may differ.
    holds(&check(&changed(|p| p.buffers[0].name = "other".into()), 3));
}

#[test]
fn a_deadlock_does_not_hide_a_race() {
    let report = check(
        &pair(|p| {
            let slot = p.builder.slot("go");
            let (src, dst) = (p.at(p.rank, p.input), p.at(0, p.mailbox));
            p.builder.copy(MAIN, src, dst);
            p.fill_output(MAIN);
            p.builder
                .wait(MAIN, slot, [p.peer])
                .signal(MAIN, slot, [p.peer]);
        }),
        3,
    );
    assert!(has_deadlock(&report) && has_race(&report), "{report}");
}

#[test]
fn long_lags_unroll_enough_calls() {
    // Three credits, one signal every call: the mailbox is overwritten while the peer still reads.
    let plans = pair(|p| {
        let [sent, taken] = ["sent", "taken"].map(|name| p.builder.slot(name));
        let (src, dst) = (p.at(p.rank, p.input), p.at(p.peer, p.mailbox));
        let (arrived, out) = (p.at(p.rank, p.mailbox), p.at(p.rank, p.output));
        p.builder
            .wait_lag(MAIN, taken, [p.peer], 3)
            .copy(MAIN, src, dst)
            .signal(MAIN, sent, [p.peer])
            .wait(MAIN, sent, [p.peer])
            .copy(MAIN, arrived, out)
            .signal(MAIN, taken, [p.peer]);
    });
    let report = check(&plans, 1);
    assert_eq!(report.calls, 4);
    assert!(has_race(&report), "{report}");
    replay(&plans, &report);
}
