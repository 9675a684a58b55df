//! The seven algorithms hold as they are.

use crate::fixtures::{has_deadlock, holds, narrow, pipelines, plans, problem};
use std::time::{Duration, Instant};
use warpweave_overlap::algorithms::{self, Capabilities};
use warpweave_overlap::plan::{Collective, Effect, OpKind, Placement, Plan, Problem, Transport};
use warpweave_overlap::{Operation, PlanError, check};
use warpweave_symm_mem::DType;

#[test]
fn every_algorithm_holds_at_every_world_and_shape() {
    for algorithm in &algorithms::table() {
        for world in [1, 2, 3, 4, 8] {
            // Even, ragged, fewer rows than ranks, a single row.
            for m in [8 * world, 8 * world + 3, 3, 1] {
                for multicast in [false, true] {
                    let problem = problem(m).with_multicast(multicast);
                    let plans = plans(algorithm, world, &problem);
                    holds(&check(&plans, 3));
                    assert!(plans.iter().all(Plan::kernels_do_what_they_declare));
                }
            }
        }
    }
}

/// The lanes of a kernel one after the other, as the host reference takes them: signals that stand first in a
/// lane, then the lanes, this rank's own first, then the waits that stand last.
fn in_one_lane(lanes: &[Vec<Effect>], rank: usize) -> Vec<Effect> {
    let leads = |e: &Effect| matches!(e, Effect::Signal { .. });
    let trails = |e: &Effect| matches!(e, Effect::Wait { lag: 0, .. });
    let (mut first, mut middle, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..lanes.len() {
        let mut lane = &lanes[(rank + step) % lanes.len()][..];
        if let [effect, rest @ ..] = lane
            && leads(effect)
        {
            first.push(effect.clone());
            lane = rest;
        }
        if let [rest @ .., effect] = lane
            && trails(effect)
            && !rest.is_empty()
        {
            last.push(effect.clone());
            lane = rest;
        }
        middle.extend_from_slice(lane);
    }
    [first, middle, last].concat()
}

#[test]
fn kernels_that_take_their_lanes_in_turn_hold_too() {
    for algorithm in &algorithms::table() {
        for world in [1, 2, 3, 4, 8] {
            let mut plans = plans(algorithm, world, &problem(2 * world + 1));
            for plan in &mut plans {
                for op in &mut plan.ops {
                    if let OpKind::Kernel { lanes, .. } = &mut op.kind {
                        *lanes = vec![in_one_lane(lanes, plan.rank)];
                    }
                }
            }
            holds(&check(&plans, 3));
        }
    }
}

/// Those that gather rows of e4m3, and the norm after a GEMM of e4m3; reductions are elsewhere.
#[test]
fn what_takes_e4m3_holds_with_it() {
    let operations = [
        Operation::AllGatherMatmul,
        Operation::ColumnParallelLinear,
        Operation::RowParallelLinearNorm,
    ];
    let mut all = algorithms::every();
    all.retain(|c| operations.contains(&c.operation()) && narrow(c, 1).len() > 1);
    for name in [
        "fusedAllGather:pulled=3",
        "columnParallelLinear:gather=push",
        "columnParallelLinear:sharding=cyclic",
        "rowParallelLinearNorm",
    ] {
        assert!(all.iter().any(|c| c.name() == name), "{name}");
    }
    for algorithm in &all {
        for world in [1, 2, 3, 8] {
            for m in [8 * world + 3, 3] {
                for problem in narrow(algorithm, m) {
                    let plans = plans(algorithm, world, &problem);
                    holds(&check(&plans, 3));
                    assert!(plans.iter().all(Plan::kernels_do_what_they_declare));
                }
            }
        }
    }
}

#[test]
fn lanes_by_piece_hold_too() {
    for algorithm in &algorithms::every() {
        for world in [2, 3] {
            let m = 4 * world + 1;
            for problem in std::iter::once(problem(m)).chain(narrow(algorithm, m)) {
                let mut plans = plans(algorithm, world, &problem);
                for plan in &mut plans {
                    for op in &mut plan.ops {
                        if let OpKind::Kernel { kernel, lanes } = &mut op.kind {
                            *lanes = kernel.lanes_by_piece(plan.rank, world);
                        }
                    }
                }
                holds(&check(&plans, 3));
            }
        }
    }
}

#[test]
fn kernels_that_take_whole_lanes_in_turn_deadlock() {
    // Each rank finishes with one peer before it turns to the next: with three ranks, all wait in a circle.
    let mut plans = plans(&algorithms::table()[2], 3, &problem(6));
    for plan in &mut plans {
        for op in &mut plan.ops {
            if let OpKind::Kernel { lanes, .. } = &mut op.kind {
                let next = |step: usize| lanes[(plan.rank + step) % 3].clone();
                *lanes = vec![[0, 1, 2].map(next).concat()];
            }
        }
    }
    let report = check(&plans, 3);
    assert!(has_deadlock(&report), "{report}");
}

#[test]
fn more_calls_change_nothing() {
    for algorithm in &algorithms::table() {
        for calls in [0, 1, 2, 7] {
            let report = check(&plans(algorithm, 3, &problem(7)), calls);
            holds(&report);
            assert_eq!(report.calls, calls.max(2));
        }
    }
}

#[test]
fn eight_ranks_take_well_under_a_second() {
    for algorithm in &algorithms::table() {
        let plans = plans(algorithm, 8, &problem(64));
        let began = Instant::now();
        holds(&check(&plans, 3));
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(1),
            "{} took {took:?}",
            algorithm.name()
        );
    }
}

#[test]
fn the_order_of_the_plans_does_not_matter() {
    let mut plans = plans(&algorithms::table()[2], 4, &problem(9));
    let report = check(&plans, 3);
    plans.reverse();
    assert_eq!(check(&plans, 3), report);
}

#[test]
fn a_pipeline_on_two_streams_holds() {
    for world in [1, 2, 3, 4, 8] {
        holds(&check(&pipelines(world), 3));
    }
}

#[test]
fn algorithms_are_found_by_their_exact_names() {
    let names: Vec<String> = algorithms::table().iter().map(|a| a.name()).collect();
    assert_eq!(
        names,
        [
            "baselineNcclAllgatherMatmul",
            "baselineCudaAllgatherMatmul",
            "naiveRemoteRead",
            "threadloadGatherScalarCompute",
            "multimemGatherScalarCompute",
            "threadloadGatherThenCutlass",
            "multimemGatherThenCutlass",
        ]
    );
    for name in names {
        let algorithm = algorithms::find(&name).unwrap();
        let plans = plans(&algorithm, 2, &problem(4));
        assert!(plans.iter().all(|p| p.name == name));
    }
    let error = algorithms::find("naiveremoteread").unwrap_err();
    let PlanError::UnknownAlgorithm { known, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(known.len(), algorithms::algorithms().count());
    assert!(error.to_string().contains("naiveRemoteRead"));
}

#[test]
fn impossible_problems_are_errors() {
    for algorithm in &algorithms::table() {
        let build = |rank, world, problem: &Problem| algorithm.plan(rank, world, problem);
        assert!(matches!(
            build(2, 2, &problem(4)),
            Err(PlanError::RankOutsideWorld { rank: 2, world: 2 })
        ));
        assert!(algorithm.plans(0, &problem(4)).is_err());
        for (m, n, k) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            let empty = Problem::new(m, n, k, DType::F16);
            assert!(matches!(
                build(0, 1, &empty),
                Err(PlanError::EmptyProblem { .. })
            ));
        }
        let huge = Problem::new(usize::MAX, usize::MAX, 2, DType::F16);
        assert!(matches!(
            build(0, 2, &huge),
            Err(PlanError::TooLarge { .. })
        ));
    }
}

#[test]
fn capabilities_transports_and_launches_are_those_of_the_table() {
    let expected = [
        (false, false, 2, Transport::Nccl),
        (false, false, 1, Transport::CopyEngine),
        (false, false, 1, Transport::ThreadLoads),
        (false, false, 1, Transport::ThreadLoads),
        (true, true, 1, Transport::Multimem),
        (false, true, 2, Transport::ThreadLoads),
        (true, true, 2, Transport::Multimem),
    ];
    for (algorithm, (multicast, sm90, launches, transport)) in
        algorithms::table().iter().zip(expected)
    {
        assert_eq!(algorithm.needs(), Capabilities { multicast, sm90 });
        let plan = algorithm.plan(1, 4, &problem(8)).unwrap();
        assert_eq!(plan.launches(), launches, "{}", plan.name);
        assert_eq!(plan.transports(), [transport], "{}", plan.name);
    }
    let multicast = problem(8).with_multicast(true);
    let plan = algorithms::table()[1].plan(1, 4, &multicast).unwrap();
    assert_eq!(plan.transports(), [Transport::MulticastCopy]);
}

/// What is local on both sides travels by packets, which end at small messages: at the shapes that matter
/// there would be no variant.
#[test]
fn collectives_over_symmetric_memory_have_their_large_operand_there() {
    let mut seen = 0;
    for configuration in algorithms::every() {
        let plan = configuration.plan(1, 4, &problem(16)).unwrap();
        for op in &plan.ops {
            let OpKind::Collective {
                collective,
                src,
                dst,
                transport: Transport::SymmetricMemory,
                ..
            } = &op.kind
            else {
                continue;
            };
            let large = match collective {
                Collective::AllGather => dst,
                _ => src,
            };
            let placement = plan.buffers[large.buffer.0].placement;
            assert_eq!(placement, Placement::Symmetric, "{configuration}");
            seen += 1;
        }
    }
    assert!(seen > 0);
}

#[test]
fn missing_capabilities_are_named() {
    let machine = Capabilities {
        multicast: false,
        sm90: true,
    };
    let missing = |name| algorithms::find(name).unwrap().needs().missing_on(machine);
    assert!(missing("threadloadGatherThenCutlass").is_empty());
    let multimem = missing("multimemGatherThenCutlass");
    assert_eq!(
        multimem,
        Capabilities {
            multicast: true,
            sm90: false
        }
    );
}

#[test]
fn plans_survive_serialisation() {
    for algorithm in &algorithms::table() {
        for plan in plans(algorithm, 3, &problem(7)) {
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
        }
    }
}

/// What a plan in a file asks for and no executor does is not dropped in silence.
#[test]
fn a_copy_in_a_file_has_no_transport_to_choose() {
    let copies = |op: &warpweave_overlap::plan::Op| matches!(op.kind, OpKind::Copy { .. });
    let configuration = algorithms::find("ringPut").unwrap();
    let plan = configuration.plan(0, 2, &problem(4)).unwrap();
    let copy = plan.ops.iter().find(|op| copies(op)).unwrap();
    let mut value = serde_json::to_value(copy).unwrap();
    assert_eq!(
        serde_json::from_value::<warpweave_overlap::plan::Op>(value.clone()).unwrap(),
        *copy
    );
    value["kind"]["Copy"]["transport"] = "ThreadLoads".into();
    let error = serde_json::from_value::<warpweave_overlap::plan::Op>(value).unwrap_err();
    assert!(error.to_string().contains("transport"), "{error}");
}
