//! The kernels that communicate while they multiply hold, and need each of their signals and waits.

use crate::fixtures::{has_race, holds, plans, problem};
use warpweave_overlap::check::{FaultKind, Violation};
use warpweave_overlap::kernels::AnyKernel;
use warpweave_overlap::plan::{BufferId, Effect, Op, OpKind, Plan, Region, Role, SlotId, StreamId};
use warpweave_overlap::{Report, algorithms, check};

const FUSED: [&str; 5] = [
    "fusedReduceScatter",
    "fusedAllReduce",
    "fusedRowParallelLinear",
    "fusedAllReduce:reduce=multimem",
    "fusedRowParallelLinear:reduce=multimem",
];

#[test]
fn fused_kernels_hold_in_groups_of_any_number_of_rows() {
    for name in FUSED {
        for world in 2..=8 {
            for rows in [1, 2, 3] {
                let configuration = algorithms::find(&format!("{name}:rows={rows}")).unwrap();
                for m in [4 * world, 3 * world + 2, 3] {
                    let plans = plans(&configuration, world, &problem(m));
                    holds(&check(&plans, 3));
                    assert!(plans.iter().all(Plan::kernels_do_what_they_declare));
                }
            }
        }
    }
}

/// Each wait, each signal and each order of lanes of a fused kernel is needed.
#[test]
fn fused_kernels_without_one_of_their_signals_or_waits_do_not_hold() {
    // One of each of four groups of others, three of each of two own ones, three in the end. For everyone,
    // one more of each. By multimem one of each of four groups of others, two of each of two own ones, three
    // in the end.
    for (name, count) in FUSED.into_iter().zip([13, 19, 19, 11, 11]) {
        assert_eq!(needed(&format!("{name}:rows=2")), count, "{name}");
    }
    // Where rows are pushed: of each of two others the flag, the GEMM after it and what is pulled after it;
    // three in the end.
    assert_eq!(needed("fusedAllGather:chunks=2:pulled=4"), 9);
    assert_eq!(needed("fusedColumnParallelLinear:chunks=2:pulled=4"), 9);
    // A flag to all others, and one of each.
    assert_eq!(needed("fusedAllGather:protocol=eager"), 3);
    // A flag to all others, one of each after the own part.
    assert_eq!(needed("fusedAllReduce:shots=1"), 3);
}

/// Whose calls alternate between two stagings.
const EAGER: [&str; 3] = [
    "fusedAllGather:protocol=eager",
    "fusedAllReduce:shots=1",
    "fusedRowParallelLinear:shots=1",
];

/// What takes the place of all other flags where data is pushed by the eager protocol.
#[test]
fn eager_chunks_need_two_stagings_and_a_flag_of_every_rank() {
    for name in EAGER {
        needs_two_stagings_and_every_flag(name);
    }
}

fn needs_two_stagings_and_every_flag(name: &str) {
    let configuration = algorithms::find(name).unwrap();
    for world in 2..=8 {
        // Shards of some ranks are empty.
        for m in [4 * world, world - 1] {
            let sound = plans(&configuration, world, &problem(m));
            holds(&check(&sound, 1));
            assert!(sound.iter().all(Plan::kernels_do_what_they_declare));
            let mut single = sound.clone();
            for plan in &mut single {
                for buffer in &mut plan.buffers {
                    buffer.alternating = false;
                }
            }
            let report = check(&single, 1);
            assert!(has_race(&report), "{world} ranks: {report}");
        }
        // Two calls with one staging each do not show what a third does to the first.
        let mut silent = plans(&configuration, world, &problem(world - 1));
        for plan in &mut silent {
            let rank = plan.rank;
            for effect in lanes_of(plan).iter_mut().flatten() {
                match effect {
                    Effect::Wait { from, .. } => from.retain(|&rank| rank != world - 1),
                    Effect::Signal { to, .. } if rank == world - 1 => to.clear(),
                    _ => {}
                }
            }
        }
        let report = check(&silent, 2);
        assert!(has_race(&report), "{world} ranks: {report}");
    }
}

/// Its flags are epochs of the call, not of signals, and most of them are in no lane.
#[test]
fn a_kernel_that_counts_its_calls_has_its_slots_alone() {
    for name in EAGER {
        has_its_slots_alone(name);
    }
}

fn has_its_slots_alone(name: &str) {
    let configuration = algorithms::find(name).unwrap();
    let sound = plans(&configuration, 2, &problem(8));
    for slot in [0, sound[0].slots.len() - 1].map(SlotId) {
        let mut shared = sound.clone();
        for plan in &mut shared {
            let peer = vec![1 - plan.rank];
            let signal = OpKind::Signal {
                slot,
                to: peer.clone(),
            };
            let wait = OpKind::Wait {
                slot,
                from: peer,
                lag: 0,
            };
            plan.ops.extend([signal, wait].map(|kind| Op {
                stream: StreamId::MAIN,
                kind,
            }));
        }
        let report = check(&shared, 3);
        assert!(has_fault(&report, FaultKind::SharedSlot), "{report}");
    }
}

fn has_fault(report: &Report, kind: FaultKind) -> bool {
    let is_it = |v: &Violation| matches!(v, Violation::Fault(fault) if fault.kind == kind);
    report.violations.iter().any(is_it)
}

#[test]
fn an_alternating_buffer_is_one_kernels_staging() {
    for name in EAGER {
        is_one_kernels_staging(name);
    }
}

fn is_one_kernels_staging(name: &str) {
    let configuration = algorithms::find(name).unwrap();
    let sound = plans(&configuration, 2, &problem(8));
    let staging = sound[0].buffers.iter().position(|b| b.alternating).unwrap();
    let is_refused = |plans: &[Plan]| {
        let report = check(plans, 3);
        assert!(has_fault(&report, FaultKind::WrongTurn), "{report}");
    };
    let mut output = sound.clone();
    output[0].buffers[staging].role = Role::Output;
    is_refused(&output);
    let mut twice = sound.clone();
    let again = twice[0].ops[0].clone();
    twice[0].ops.push(again);
    is_refused(&twice);
    let mut stranger = sound;
    let whole = |buffer: usize| Region {
        rank: 0,
        buffer: BufferId(buffer),
        rows: 0..1,
        cols: 0..1,
    };
    let copy = OpKind::Copy {
        src: whole(staging),
        dst: whole(stranger[0].buffers.len() - 2),
    };
    stranger[0].ops.push(Op {
        stream: StreamId::MAIN,
        kind: copy,
    });
    is_refused(&stranger);
}

/// How many signals, waits and orders of lanes the kernel of rank 1 of three has, without any of which the
/// plans do not hold.
fn needed(name: &str) -> usize {
    let configuration = algorithms::find(name).unwrap();
    let sound = plans(&configuration, 3, &problem(10));
    let mut count = 0;
    for (lane, effects) in lanes(&sound[1]).iter().enumerate() {
        for (at, effect) in effects.iter().enumerate() {
            let empty = match effect {
                Effect::Wait { slot, lag, .. } => Effect::Wait {
                    slot: *slot,
                    from: Vec::new(),
                    lag: *lag,
                },
                Effect::Signal { slot, .. } => Effect::Signal {
                    slot: *slot,
                    to: Vec::new(),
                },
                Effect::After(_) => Effect::After(Vec::new()),
                _ => continue,
            };
            let mut plans = sound.clone();
            lanes_of(&mut plans[1])[lane][at] = empty;
            assert!(!check(&plans, 3).holds(), "{name}, lane {lane}, {effect:?}");
            count += 1;
        }
    }
    count
}

/// Where everyone gets the result, those that come of a partial are after it, and whoever it is from waits
/// for these.
#[test]
fn ranks_are_done_after_all_that_they_pull() {
    for name in FUSED {
        let configuration = algorithms::find(&format!("{name}:rows=2")).unwrap();
        let sound = plans(&configuration, 3, &problem(10));
        let last = lanes(&sound[1]).len() - 1;
        let Effect::After(pulls) = lanes(&sound[1])[last][0].clone() else {
            panic!("{name}");
        };
        // Of two own groups, from two ranks. By multimem the reductions of own groups.
        let partials = 4;
        let needed = if FUSED[1..3].contains(&name) {
            partials
        } else {
            0
        };
        for pull in &pulls[needed..] {
            let mut plans = sound.clone();
            let others = pulls.iter().filter(|other| *other != pull);
            lanes_of(&mut plans[1])[last][0] = Effect::After(others.copied().collect());
            assert!(!check(&plans, 3).holds(), "{name}, lane {pull}");
        }
    }
}

#[test]
fn lanes_come_after_those_before_them_alone() {
    let configuration = algorithms::find("fusedReduceScatter").unwrap();
    let mut plans = plans(&configuration, 2, &problem(10));
    let last = lanes(&plans[0]).len() - 1;
    lanes_of(&mut plans[0])[last][0] = Effect::After(vec![last]);
    let report = check(&plans, 3);
    assert!(!report.holds());
    let after = format!("lane {last} comes after lane {last}");
    assert!(report.to_string().contains(&after), "{report}");
}

/// Own groups come last, or, where everyone gets the result, a round after that in which their partials are
/// ready.
#[test]
fn fused_kernels_take_own_groups_late() {
    let rounds = [(2, 0), (0, 0), (2, 1), (0, 1), (1, 0), (1, 1)];
    let longer = [
        (2, 0),
        (0, 0),
        (2, 1),
        (0, 1),
        (2, 2),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ];
    let after = [
        (2, 0),
        (0, 0),
        (2, 1),
        (0, 1),
        (1, 0),
        (2, 2),
        (0, 2),
        (1, 1),
        (1, 2),
    ];
    for (name, m, wanted) in [
        (FUSED[0], 12, &rounds[..]),
        (FUSED[1], 12, &rounds),
        (FUSED[0], 18, &longer),
        (FUSED[1], 18, &after),
    ] {
        let configuration = algorithms::find(&format!("{name}:rows=2")).unwrap();
        let plan = configuration.plan(1, 3, &problem(m)).unwrap();
        let OpKind::Kernel {
            kernel: AnyKernel::MatmulReduce(reduction),
            lanes,
        } = &plan.ops[0].kind
        else {
            panic!("{plan:?}");
        };
        let order = reduction.order(1, 3);
        let groups: Vec<_> = order.iter().map(|g| (g.owner, g.index)).collect();
        assert_eq!(groups, wanted, "{name}, {m} rows");
        // The partials of own groups, and the results of others where everyone gets them, are pulled during
        // the GEMMs.
        let own = groups.iter().filter(|(owner, _)| *owner == 1).count();
        let results = if name == FUSED[0] {
            0
        } else {
            groups.len() - own
        };
        assert_eq!(lanes.len(), groups.len() + 2 * own + results + 1);
    }
}

fn lanes(plan: &Plan) -> &[Vec<Effect>] {
    let lanes = plan.ops.iter().find_map(|op| match &op.kind {
        OpKind::Kernel { lanes, .. } => Some(lanes),
        _ => None,
    });
    lanes.expect("a kernel")
}

fn lanes_of(plan: &mut Plan) -> &mut [Vec<Effect>] {
    let lanes = plan.ops.iter_mut().find_map(|op| match &mut op.kind {
        OpKind::Kernel { lanes, .. } => Some(lanes),
        _ => None,
    });
    lanes.expect("a kernel")
}
