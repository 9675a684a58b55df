//! Schedules: every M up to the maximum has plans that are proved and closed.

use crate::fixtures::problem;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::check::Checked;
use warpweave_overlap::plan::{Buffer, OpKind, Placement, Plan, Problem, Role};
use warpweave_overlap::schedule::Closing;
use warpweave_overlap::{Schedule, ScheduleError, show};
use warpweave_symm_mem::DType;

fn schedule(configuration: &Configuration, world: usize, largest: &Problem) -> Schedule {
    Schedule::new(configuration.clone(), world, *largest).expect("a sound problem")
}

fn named(name: &str, world: usize, most: usize) -> Schedule {
    schedule(&algorithms::find(name).unwrap(), world, &problem(most))
}

/// Bytes of staging that peers reach, and of all. What is local at some M may be symmetric at another.
fn staging(plan: &Plan) -> [usize; 2] {
    let staging = || plan.buffers.iter().filter(|b| b.role == Role::Staging);
    let bytes = |b: &Buffer| b.bytes() * b.copies();
    let reached = staging().filter(|b| b.placement != Placement::Local);
    [reached.map(bytes).sum(), staging().map(bytes).sum()]
}

/// The proofs of one schedule at each of `ms`, which end with the maximum.
fn proves(schedule: &Schedule, ms: impl Iterator<Item = usize>) {
    let most = schedule.problem().m;
    let largest = schedule.checked(most).unwrap_or_else(|e| panic!("{e}"));
    for m in ms.chain([most]) {
        let checked = schedule.checked(m).unwrap_or_else(|e| panic!("{e}"));
        assert!(checked.is_closed());
        for (plan, large) in checked.plans().iter().zip(largest.plans()) {
            let at = format!("{} of {} at {m} of {most}", plan.name, plan.world);
            let ([reached, all], [most_reached, most]) = (staging(plan), staging(large));
            assert!(reached <= most_reached && all <= most, "{at}");
            // The barrier's.
            assert!(plan.slots.len() <= large.slots.len() + 1, "{at}");
            assert!(plan.streams.len() <= large.streams.len(), "{at}");
            assert!(plan.kernels_do_what_they_declare(), "{at}");
            for operand in schedule.operands(plan.rank, m).unwrap() {
                let buffer = &plan.buffers[plan.buffer_named(operand.buffer).unwrap().0];
                assert_eq!(
                    (buffer.placement, buffer.role),
                    (Placement::Local, operand.role())
                );
            }
        }
    }
}

/// No M is an exception, of any configuration.
#[test]
fn every_m_up_to_the_maximum_is_proved() {
    for configuration in algorithms::every() {
        for world in 1..=4 {
            for multicast in [false, true] {
                // What differs with multicast.
                if multicast && configuration.name() != "baselineCudaAllgatherMatmul" {
                    continue;
                }
                let largest = problem(70).with_multicast(multicast);
                proves(&schedule(&configuration, world, &largest), 1..70);
            }
        }
    }
}

#[test]
fn eight_ranks_and_thousands_of_rows_are_proved() {
    for algorithm in algorithms::algorithms() {
        let configuration = Configuration::with_defaults(algorithm);
        proves(&schedule(&configuration, 8, &problem(20)), 1..20);
        let ms = [9, 100, 1023, 1024, 1025, 4001];
        proves(&schedule(&configuration, 4, &problem(4099)), ms.into_iter());
    }
}

/// What each algorithm's calls are closed by, where there are four ranks with several rows each.
#[test]
fn calls_are_closed_by_what_they_need() {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for configuration in algorithms::every() {
        let by = match schedule(&configuration, 4, &problem(64)).closing(64) {
            Ok(Closing::AsBuilt) => continue,
            Ok(Closing::Grants) => "grants",
            Ok(Closing::Acknowledgements) => "acknowledgements",
            Ok(Closing::Barrier) => "barrier",
            other => panic!("{configuration}: {other:?}"),
        };
        let name = configuration.algorithm().name;
        // Where not the algorithm but an option matters.
        let name = match Configuration::with_defaults(configuration.algorithm()) {
            default if schedule(&default, 4, &problem(64)).closing(64) == Ok(Closing::AsBuilt) => {
                configuration.name()
            }
            _ => name.to_owned(),
        };
        let names = found.entry(by).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let expected = [
        ("acknowledgements", vec!["ringGet"]),
        (
            "barrier",
            vec![
                "multimemGatherScalarCompute",
                "multimemGatherThenCutlass",
                "fusedAllGather:pulled=3",
                "fusedColumnParallelLinear:pulled=3",
                "allReducePipeline",
                "rowParallelLinearPipeline",
            ],
        ),
        (
            "grants",
            vec![
                "baselineCudaAllgatherMatmul",
                "ringPut",
                "pushChunks",
                "pushChunksWaitingGemm",
                "broadcastPipeline",
                "hierarchical",
                "columnParallelLinear:gather=push",
                "hierarchicalColumnParallelLinear",
                "reduceScatterPipeline",
                "reduceScatterRing",
                "linearReduceScatterPipeline",
            ],
        ),
    ];
    let expected = expected.map(|(by, names)| (by, names.into_iter().map(str::to_owned).collect()));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn what_is_out_of_range_or_unknown_is_an_error() {
    let schedule = named("directExchangePipeline", 2, 16);
    for m in [0, 17] {
        let error = schedule.checked(m).unwrap_err();
        let expected = ScheduleError::OutOfRange {
            schedule: "directExchangePipeline".into(),
            m,
            most: 16,
        };
        assert_eq!(error, expected);
    }
    let error = schedule.symmetric("x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "`directExchangePipeline` has no operand `x`; it has a, b, c"
    );
}

#[test]
fn what_peers_reach_is_staged_unless_the_caller_has_it_in_symmetric_memory() {
    let copies = |plan: &Plan| {
        let ops = plan.ops.iter();
        ops.filter(|op| matches!(&op.kind, OpKind::Copy { src, dst } if src.rank == dst.rank))
            .count()
    };
    // The all-gather's input, and the output that peers pull.
    for (name, operand) in [("directExchangePipeline", "a"), ("allReducePipeline", "c")] {
        let local = named(name, 3, 20);
        let symmetric = local.clone().symmetric(operand).unwrap();
        assert!(symmetric.is_symmetric(operand) && !local.is_symmetric(operand));
        for m in [1, 2, 3, 19, 20] {
            let (staged, in_place) = (local.checked(m).unwrap(), symmetric.checked(m).unwrap());
            for (with, without) in staged.plans().iter().zip(in_place.plans()) {
                let has = |plan: &Plan, name: &str| plan.buffer_named(name).is_some();
                let own = &with.buffers[with.buffer_named(operand).unwrap().0];
                assert_eq!(copies(with), copies(without) + usize::from(own.rows > 0));
                let name = format!("{operand}.staged");
                assert!(has(with, &name) && !has(without, &name));
                let whole = &without.buffers[without.buffer_named(operand).unwrap().0];
                assert_eq!(whole.placement, Placement::Symmetric);
                assert_eq!((whole.role, own.role), (own.role, whole.role));
            }
        }
    }
    // A kernel that alone uses an operand copies it itself.
    for (name, operand) in [("fusedAllGather", "a"), ("fusedAllReduce", "c")] {
        let local = named(name, 3, 20);
        let both = [operand.into(), format!("{operand}.staged")];
        for m in [1, 2, 20] {
            for plan in local.checked(m).unwrap().plans() {
                let copying = plan.ops.iter().any(|op| match &op.kind {
                    OpKind::Kernel { kernel, .. } => {
                        let buffers = kernel.buffers();
                        let has = |name| buffers.contains(&plan.buffer_named(name).unwrap());
                        both.iter().all(|name| has(name))
                    }
                    _ => false,
                });
                assert!(copying && copies(plan) == 0);
            }
        }
    }
    // What no peer reaches is the same.
    let local = named("ringPut", 3, 20);
    let symmetric = local.clone().symmetric("a").unwrap();
    assert_eq!(local.plans(20), symmetric.plans(20));
}

#[test]
fn staging_and_what_closes_a_call_are_printed() {
    let of = |name: &str| {
        let schedule = named(name, 3, 7);
        show(schedule.checked(7).unwrap().plan(1))
    };
    insta::assert_snapshot!("acknowledgements", of("ringGet"));
    insta::assert_snapshot!("grants", of("baselineCudaAllgatherMatmul"));
    insta::assert_snapshot!("barrier", of("allReducePipeline:chunks=1:streams=1"));
}

fn configuration() -> impl Strategy<Value = Configuration> {
    prop::sample::select(algorithms::every())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// A proof that was looked up is the proof that the plans themselves have.
    #[test]
    fn a_class_has_the_proof_of_its_plans(
        configuration in configuration(),
        world in 1usize..6,
        ms in prop::collection::vec(1usize..200, 3),
    ) {
        let schedule = schedule(&configuration, world, &problem(200));
        for m in ms {
            let checked = schedule.checked(m).expect("a proof");
            let direct = Checked::prove(checked.plans().to_vec()).expect("a proof");
            prop_assert!(direct.is_closed());
            prop_assert_eq!(&*checked, &direct);
        }
    }
}

/// Prints how long a proof takes, once per class, and how long an M takes whose class is known.
#[test]
fn a_known_class_costs_no_proof() {
    let names = [
        "baselineNcclAllgatherMatmul",
        "ringPut",
        "pushChunks",
        "fusedAllGather",
        "fusedAllGather:protocol=eager",
        "columnParallelLinear",
        "reduceScatterPipeline",
        "fusedReduceScatter",
        "fusedAllReduce",
        "fusedAllReduce:shots=1",
        "rowParallelLinear",
    ];
    println!("world     proof   known M");
    for world in [4, 8] {
        for name in names {
            let largest = Problem::new(4096, 512, 1024, DType::Bf16);
            let schedule = schedule(&algorithms::find(name).unwrap(), world, &largest);
            let time = |m: usize| {
                let began = Instant::now();
                schedule.checked(m).unwrap();
                began.elapsed()
            };
            // The class may be known from another test.
            let plans = schedule.plans(2048).unwrap();
            let began = Instant::now();
            Checked::prove(plans).unwrap();
            let proof = began.elapsed();
            let mut others: Vec<Duration> = (1..=20).map(|i| time(2048 + 64 * i)).collect();
            others.sort();
            let median = others[others.len() / 2];
            println!("{world:5} {proof:>9.1?} {median:>9.1?}  {name}");
            assert!(median < Duration::from_millis(50), "{name}: {median:?}");
        }
    }
}
