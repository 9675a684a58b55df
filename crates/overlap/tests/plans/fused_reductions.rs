//! The kernels that multiply, fetch and sum hold, and need each of their signals and waits.

use crate::fixtures::{holds, plans, problem};
use warpweave_overlap::plan::{Effect, Kernel, OpKind, Plan};
use warpweave_overlap::{algorithms, check};

const FUSED: [&str; 3] = [
    "fusedReduceScatter",
    "fusedAllReduce",
    "fusedRowParallelLinear",
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

/// Each wait and each signal of a fused kernel is needed.
#[test]
fn fused_kernels_without_one_of_their_signals_or_waits_do_not_hold() {
    for name in FUSED {
        let configuration = algorithms::find(&format!("{name}:rows=2")).unwrap();
        let sound = plans(&configuration, 3, &problem(10));
        let lanes = |plan: &Plan| match &plan.ops[0].kind {
            OpKind::Kernel { lanes, .. } => lanes.clone(),
            other => panic!("{other:?}"),
        };
        let mut dropped = 0;
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
                    _ => continue,
                };
                let mut plans = sound.clone();
                if let OpKind::Kernel { lanes, .. } = &mut plans[1].ops[0].kind {
                    lanes[lane][at] = empty;
                }
                assert!(!check(&plans, 3).holds(), "{name}, lane {lane}, {effect:?}");
                dropped += 1;
            }
        }
        // Two of each of four groups of others, three of each own one.
        assert_eq!(dropped, 14, "{name}");
    }
}

/// The parts of an own group are taken in the round behind that in which they are ready.
#[test]
fn fused_kernels_take_own_groups_a_round_later() {
    let plan = algorithms::find("fusedReduceScatter:rows=2")
        .unwrap()
        .plan(1, 3, &problem(12))
        .unwrap();
    let OpKind::Kernel {
        kernel: Kernel::ReducingMatmul(reduction),
        lanes,
    } = &plan.ops[0].kind
    else {
        panic!("{plan:?}");
    };
    let order = reduction.order(1, 3);
    let groups: Vec<_> = order.iter().map(|g| (g.owner, g.index)).collect();
    assert_eq!(groups, [(2, 0), (0, 0), (2, 1), (0, 1), (1, 0), (1, 1)]);
    // Own groups are fetched beside their product.
    assert_eq!(lanes.len(), groups.len() + 2);
}
