//! What *show* and a report print, as committed snapshots.

use crate::fixtures::{pair, pipeline, plans, problem};
use warpweave_overlap::{algorithms, check, show};

#[test]
fn every_algorithm_at_rank_1_of_4() {
    for algorithm in &algorithms::table() {
        let plan = algorithm.plan(1, 4, &problem(10)).unwrap();
        insta::assert_snapshot!(algorithm.name(), show(&plan));
    }
}

#[test]
fn the_multicast_variant_of_the_copy_engine_baseline() {
    let problem = problem(10).with_multicast(true);
    let plan = algorithms::table()[1].plan(1, 4, &problem).unwrap();
    insta::assert_snapshot!(show(&plan));
}

#[test]
fn streams_and_events() {
    insta::assert_snapshot!(show(&pipeline(1, 2)));
}

#[test]
fn a_report_that_holds() {
    let report = check(&plans(&algorithms::table()[1], 4, &problem(10)), 3);
    insta::assert_snapshot!(report);
}

#[test]
fn a_report_of_a_race() {
    let report = check(
        &pair(|p| {
            let sent = p.builder.slot("sent");
            let (src, dst) = (p.at(p.rank, p.input), p.at(p.peer, p.mailbox));
            let (arrived, out) = (p.at(p.rank, p.mailbox), p.at(p.rank, p.output));
            p.builder
                .copy(crate::fixtures::MAIN, src, dst)
                .signal(crate::fixtures::MAIN, sent, [p.peer])
                .wait(crate::fixtures::MAIN, sent, [p.peer])
                .copy(crate::fixtures::MAIN, arrived, out);
        }),
        3,
    );
    insta::assert_snapshot!(report);
}

#[test]
fn a_report_of_a_deadlock() {
    let report = check(
        &pair(|p| {
            let [ping, pong] = ["ping", "pong"].map(|name| p.builder.slot(name));
            let (mine, theirs) = if p.rank == 0 {
                (ping, pong)
            } else {
                (pong, ping)
            };
            p.fill_output(crate::fixtures::MAIN);
            p.builder
                .wait(crate::fixtures::MAIN, theirs, [p.peer])
                .signal(crate::fixtures::MAIN, mine, [p.peer]);
        }),
        3,
    );
    insta::assert_snapshot!(report);
}
