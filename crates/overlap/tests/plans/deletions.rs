//! Every synchronisation is needed: whichever is deleted, *check* reports it.

use crate::fixtures::{has_deadlock, has_race, holds, pipelines, plans, problem};
use crate::interpreter::replay;
use std::collections::BTreeSet;
use warpweave_overlap::algorithms::Configuration;
use warpweave_overlap::kernels::{AllGatherMatmul, AnyKernel, GatherProtocol};
use warpweave_overlap::plan::{Effect, Op, OpKind, Plan, SlotId};
use warpweave_overlap::{Report, algorithms, check};

/// The plans that are taken apart: all algorithms, the multicast variant of the second, and a pipeline with
/// events; at two ranks with each parameter chosen otherwise too. Variants with 8 of something are left out:
/// a shard has fewer rows, and two ranks have fewer steps.
fn subjects(world: usize) -> Vec<(String, Vec<Plan>)> {
    // Three rows more than an even number of shards: ragged, but no shard is empty.
    let problem = problem(2 * world + 3);
    let configurations: Vec<Configuration> = match world {
        2 => algorithms::every(),
        _ => algorithms::algorithms()
            .map(Configuration::with_defaults)
            .collect(),
    };
    let mut subjects: Vec<(String, Vec<Plan>)> = configurations
        .iter()
        .filter(|a| !a.name().ends_with("=8"))
        .map(|a| (a.name(), plans(a, world, &problem)))
        .collect();
    let multicast = plans(
        &algorithms::table()[1],
        world,
        &problem.with_multicast(true),
    );
    subjects.push(("multicast copy".into(), multicast));
    subjects.push(("pipeline".into(), pipelines(world)));
    subjects
}

/// A signal or wait, as an operation or inside a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: usize,
    op: usize,
    /// Lane and place in the lane.
    effect: Option<(usize, usize)>,
}

/// What a synchronisation is, apart from whom it is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Signal(usize),
    Wait(usize),
    Event,
}

#[derive(Clone, Debug)]
struct Sync {
    place: Place,
    sort: Sort,
    /// Ranks signalled or waited for.
    peers: Vec<usize>,
}

fn syncs(plans: &[Plan]) -> Vec<Sync> {
    let mut found = Vec::new();
    for plan in plans {
        let rank = plan.rank;
        for (op, Op { kind, .. }) in plan.ops.iter().enumerate() {
            let mut add = |effect, sort, peers: &[usize]| {
                let place = Place { rank, op, effect };
                let peers = peers.to_vec();
                found.push(Sync { place, sort, peers });
            };
            match kind {
                OpKind::Signal { slot, to } => add(None, Sort::Signal(slot.0), to),
                OpKind::Wait { slot, from, .. } => add(None, Sort::Wait(slot.0), from),
                OpKind::Record { .. } | OpKind::WaitEvent { .. } => add(None, Sort::Event, &[]),
                OpKind::Kernel { lanes, .. } => {
                    for (l, lane) in lanes.iter().enumerate() {
                        for (i, effect) in lane.iter().enumerate() {
                            match effect {
                                Effect::Signal { slot, to } => {
                                    add(Some((l, i)), Sort::Signal(slot.0), to);
                                }
                                Effect::Wait { slot, from, .. } => {
                                    add(Some((l, i)), Sort::Wait(slot.0), from);
                                }
                                Effect::After(_) => add(Some((l, i)), Sort::Event, &[]),
                                _ => {}
                            }
                        }
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// The plans without these synchronisations.
fn without(plans: &[Plan], gone: &BTreeSet<Place>) -> Vec<Plan> {
    let mut plans = plans.to_vec();
    for plan in &mut plans {
        let rank = plan.rank;
        let here = |op, effect| gone.contains(&Place { rank, op, effect });
        for (op, Op { kind, .. }) in plan.ops.iter_mut().enumerate() {
            if let OpKind::Kernel { lanes, .. } = kind {
                for (l, lane) in lanes.iter_mut().enumerate() {
                    let mut i = 0;
                    lane.retain(|_| {
                        i += 1;
                        !here(op, Some((l, i - 1)))
                    });
                }
            }
        }
        let mut op = 0;
        plan.ops.retain(|_| {
            op += 1;
            !here(op - 1, None)
        });
    }
    plans
}

/// The plans with this rank taken out of the list of one synchronisation.
fn without_peer(plans: &[Plan], place: Place, peer: usize) -> Vec<Plan> {
    let mut plans = plans.to_vec();
    let plan = plans.iter_mut().find(|p| p.rank == place.rank).unwrap();
    let op = &mut plan.ops[place.op].kind;
    let list = match (op, place.effect) {
        (OpKind::Signal { to, .. }, None) => to,
        (OpKind::Wait { from, .. }, None) => from,
        (OpKind::Kernel { lanes, .. }, Some((lane, index))) => match &mut lanes[lane][index] {
            Effect::Signal { to, .. } => to,
            Effect::Wait { from, .. } => from,
            other => panic!("{other:?} has no peers"),
        },
        (other, _) => panic!("{other:?} has no peers"),
    };
    list.retain(|&p| p != peer);
    plans
}

fn expect_violation(report: &Report, subject: &str, deleted: &dyn std::fmt::Debug) {
    assert!(
        !report.holds(),
        "{subject}, {} ranks: {deleted:?} is redundant",
        report.world
    );
}

fn expect_race(plans: &[Plan], subject: &str, deleted: &dyn std::fmt::Debug) {
    let report = check(plans, 3);
    assert!(
        has_race(&report),
        "{subject}, {} ranks: without {deleted:?} there is no race: {report}",
        report.world
    );
    replay(plans, &report);
}

const WORLDS: [usize; 2] = [2, 4];

#[test]
fn deleting_a_synchronisation_on_one_rank_is_reported() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            holds(&check(&plans, 3));
            for sync in syncs(&plans) {
                let report = check(&without(&plans, &[sync.place].into()), 3);
                expect_violation(&report, &subject, &sync);
            }
        }
    }
}

#[test]
fn deleting_a_synchronisation_on_all_ranks_is_reported() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            let syncs = syncs(&plans);
            let of = |s: &Sync| (s.sort, s.place.op);
            let groups: BTreeSet<_> = syncs.iter().map(of).collect();
            for group in groups {
                let gone = syncs.iter().filter(|s| of(s) == group);
                let gone = gone.map(|s| s.place).collect();
                let report = check(&without(&plans, &gone), 3);
                expect_violation(&report, &subject, &group);
            }
        }
    }
}

#[test]
fn deleting_one_peer_of_a_list_is_reported() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            for sync in syncs(&plans) {
                for &peer in &sync.peers {
                    let report = check(&without_peer(&plans, sync.place, peer), 3);
                    expect_violation(&report, &subject, &(&sync, peer));
                }
            }
        }
    }
}

#[test]
fn deleting_a_signal_with_its_wait_is_a_race() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            let syncs = syncs(&plans);
            for signal in &syncs {
                let Sort::Signal(slot) = signal.sort else {
                    continue;
                };
                let src = signal.place.rank;
                for &dst in &signal.peers {
                    let wait = syncs.iter().find(|s| {
                        s.sort == Sort::Wait(slot) && s.place.rank == dst && s.peers.contains(&src)
                    });
                    let wait = wait.expect("each signal of these plans has its wait");
                    let plans = without_peer(&plans, signal.place, dst);
                    let plans = without_peer(&plans, wait.place, src);
                    expect_race(&plans, &subject, &(signal, dst));
                }
            }
        }
    }
}

/// Whether it has many words where a plan has one.
fn is_eager(kernel: &AnyKernel) -> bool {
    matches!(
        kernel,
        AnyKernel::AllGatherMatmul(AllGatherMatmul {
            protocol: GatherProtocol::Eager { .. },
            ..
        }) | AnyKernel::OneShotMatmul(_)
    )
}

#[test]
fn deleting_all_use_of_a_slot_is_a_race() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            let syncs = syncs(&plans);
            for slot in 0..plans[0].slots.len() {
                let gone = syncs
                    .iter()
                    .filter(|s| [Sort::Signal(slot), Sort::Wait(slot)].contains(&s.sort));
                let gone: BTreeSet<Place> = gone.map(|s| s.place).collect();
                // The flags of eager chunks are one to a plan, and those of units.
                let is_chunk = plans[0].ops.iter().any(|op| match &op.kind {
                    OpKind::Kernel { kernel, .. } => {
                        is_eager(kernel) && kernel.slots()[1..].contains(&SlotId(slot))
                    }
                    _ => false,
                });
                if is_chunk {
                    assert!(gone.is_empty());
                    continue;
                }
                expect_race(&without(&plans, &gone), &subject, &SlotId(slot));
            }
        }
    }
}

#[test]
fn another_lag_is_a_race_or_a_deadlock() {
    for world in WORLDS {
        for (subject, plans) in subjects(world) {
            for sync in syncs(&plans) {
                let mut plans = plans.clone();
                let plan = &mut plans[sync.place.rank];
                let lag = match (&mut plan.ops[sync.place.op].kind, sync.place.effect) {
                    (OpKind::Wait { lag, .. }, None) => lag,
                    (OpKind::Kernel { lanes, .. }, Some((lane, index))) => {
                        match &mut lanes[lane][index] {
                            Effect::Wait { lag, .. } => lag,
                            _ => continue,
                        }
                    }
                    _ => continue,
                };
                *lag += 1;
                expect_race(&plans, &subject, &(&sync, "one call more"));
            }
            // Credits taken as signals of the same call, on all ranks: everyone waits for everyone.
            let mut credits = 0;
            let mut plans = plans.clone();
            for op in plans.iter_mut().flat_map(|p| &mut p.ops) {
                match &mut op.kind {
                    OpKind::Wait { lag, .. } => credits += std::mem::take(lag),
                    OpKind::Kernel { lanes, .. } => {
                        for effect in lanes.iter_mut().flatten() {
                            if let Effect::Wait { lag, .. } = effect {
                                credits += std::mem::take(lag);
                            }
                        }
                    }
                    _ => {}
                }
            }
            let report = check(&plans, 3);
            assert_eq!(has_deadlock(&report), credits > 0, "{subject}: {report}");
        }
    }
}
