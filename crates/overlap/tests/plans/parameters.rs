//! Whatever a name or a problem says, the answer is a plan or a typed error.

use proptest::prelude::*;
use warpweave_overlap::algorithms::{self, Algorithm, Configuration, Values};
use warpweave_overlap::kernels::{KernelShape, MatmulReduce};
use warpweave_overlap::plan::{Placement, PlanBuilder, Role, SlotId};
use warpweave_overlap::plan::{Plan, Problem, StreamId, chunks};
use warpweave_overlap::simulate::SimulateError;
use warpweave_overlap::{Machine, PlanError, Violation, check, simulate};
use warpweave_symm_mem::DType;

/// Counts that no parameter takes.
const NO_COUNTS: [&str; 9] = [
    "0",
    "-1",
    "1025",
    "18446744073709551615",
    "18446744073709551616",
    "",
    "four",
    "4.0",
    " 4",
];

#[test]
fn every_parameter_refuses_what_it_does_not_take_and_says_what_it_takes() {
    for algorithm in algorithms::algorithms() {
        for parameter in algorithm.parameters {
            let wrong = match parameter.values {
                Values::Counts(_) => &NO_COUNTS[..],
                Values::Choices(_) => &["", "0", "nothing"],
            };
            for value in wrong {
                let option = format!("{}={value}", parameter.key);
                let error = algorithms::find(&format!("{}:{option}", algorithm.name)).unwrap_err();
                let PlanError::UnknownOption { option: named, .. } = &error else {
                    panic!("{option}: {error}")
                };
                assert_eq!(*named, option);
                assert!(error.to_string().contains(&parameter.to_string()));
            }
        }
    }
}

#[test]
fn every_parameter_takes_its_smallest_and_its_largest_count() {
    for algorithm in algorithms::algorithms() {
        for parameter in algorithm.parameters {
            let Values::Counts(_) = parameter.values else {
                continue;
            };
            for value in [1, 3, 1023, 1024] {
                let name = format!("{}:{}={value}", algorithm.name, parameter.key);
                let configuration = algorithms::find(&name).unwrap();
                for world in [1, 2, 3] {
                    let problem = Problem::new(20, 8, 8, DType::F16);
                    let plans = configuration.plans(world, &problem).unwrap();
                    let report = check(&plans, 3);
                    assert!(report.holds(), "{report}");
                    let of_a_call: usize = plans.iter().map(Plan::steps).sum();
                    assert_eq!(report.steps, report.calls * of_a_call);
                }
            }
        }
    }
}

#[test]
fn sizes_and_worlds_beyond_what_is_counted_are_named() {
    let most = i32::MAX as usize;
    for algorithm in algorithms::algorithms() {
        let configuration = Configuration::with_defaults(algorithm);
        for (m, n, k, what) in [
            (most + 1, 8, 8, "M"),
            (8, usize::MAX, 8, "N"),
            (8, 8, most + 1, "K"),
        ] {
            let error = configuration.plan(0, 2, &Problem::new(m, n, k, DType::F16));
            let Err(PlanError::TooLarge { size, .. }) = error else {
                panic!("{}: {error:?}", algorithm.name)
            };
            assert_eq!(size, what);
        }
        let problem = Problem::new(8, 8, 8, DType::F16);
        for world in [1 << 13, usize::MAX] {
            let error = configuration.plans(world, &problem).unwrap_err();
            assert!(matches!(error, PlanError::TooLarge { .. }), "{error}");
        }
    }
}

#[test]
fn schedules_of_too_many_steps_are_refused_with_their_number() {
    let problem = Problem::new(1 << 24, 64, 64, DType::F16);
    let machine = Machine::named("h100x8").unwrap();
    let build = |name: &str, world| algorithms::find(name).unwrap().plans(world, &problem);
    // So many that they are not built.
    for name in [
        "pushChunks:chunks=1024",
        "pushChunksWaitingGemm:chunks=1024",
        "columnParallelLinear:chunks=1024:gather=push",
        "reduceScatterPipeline:chunks=1024",
    ] {
        let error = build(name, 1024).unwrap_err();
        let PlanError::TooManySteps { steps, most, .. } = error else {
            panic!("{name}: {error}")
        };
        assert!(steps > most, "{name}: {error}");
        assert!(error.to_string().contains("fewer"), "{error}");
    }
    // So many that they can be simulated, and not proved.
    let plans = build("pushChunks:chunks=1024", 8).unwrap();
    let report = check(&plans, 3);
    let [Violation::TooManySteps { steps, most }] = report.violations[..] else {
        panic!("{report}")
    };
    let of_a_call: usize = plans.iter().map(Plan::steps).sum();
    assert_eq!(steps, 3 * of_a_call);
    assert!(most < steps && report.steps == 0);
    assert!(report.to_string().contains(&steps.to_string()), "{report}");
    // Calls are steps too.
    let few = build("naiveRemoteRead", 2).unwrap();
    let report = check(&few, usize::MAX);
    let unproved = |v: &Violation| matches!(v, Violation::TooManySteps { .. });
    assert!(report.violations.iter().any(unproved), "{report}");
    let error = simulate(&few, &machine, usize::MAX).unwrap_err();
    assert!(
        matches!(error, SimulateError::TooManySteps { .. }),
        "{error}"
    );
}

/// A launch whose groups are of one row has a lane for each row of C.
#[test]
fn a_kernel_of_too_many_lanes_is_refused_before_they_are_made() {
    let (m, n, k, dtype) = (1 << 30, 8, 8, DType::F16);
    for rows in [0, 1] {
        let mut plan = PlanBuilder::new("rows", 0, 2);
        let mut buffer = |name, placement, rows, cols| {
            plan.buffer(name, placement, Role::Staging, dtype, (rows, cols))
        };
        let kernel = MatmulReduce {
            shape: KernelShape { m, n, k, dtype },
            a: buffer("a", Placement::Local, m, k / 2),
            b: buffer("b", Placement::Local, k / 2, n),
            b_transposed: false,
            scales: None,
            c: buffer("c", Placement::Local, m / 2, n),
            local_c: None,
            staging: buffer("staging", Placement::Symmetric, m / 2, n),
            pulled: buffer("fetched", Placement::Local, m / 2, n),
            ready: SlotId(0),
            reduced: None,
            done: SlotId(1),
            rows,
            groups: m / 2,
        };
        plan.slot("ready");
        plan.slot("done");
        plan.kernel(StreamId::MAIN, kernel);
        let error = plan.finish().unwrap_err();
        assert!(matches!(error, PlanError::TooManySteps { .. }), "{error}");
    }
}

#[test]
fn chunks_are_no_more_than_rows() {
    let all: Vec<_> = chunks(3..6, usize::MAX).collect();
    assert_eq!(all, [3..4, 4..5, 5..6]);
}

/// A value, most often one that some parameter takes.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0usize..40).prop_map(|count| count.to_string()),
        2 => (0usize..1100).prop_map(|count| count.to_string()),
        1 => any::<usize>().prop_map(|count| count.to_string()),
        1 => any::<i64>().prop_map(|count| count.to_string()),
        1 => "[a-z0-9=:. -]{0,6}",
    ]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0usize..40, 1 => 0usize..5000]
}

/// Sizes at which arithmetic could overflow.
fn any_size() -> impl Strategy<Value = usize> {
    let edge = 1usize << 31;
    prop_oneof![
        1usize..40,
        edge - 3..edge + 1,
        any::<usize>(),
        Just(1 << 20)
    ]
}

fn algorithm() -> impl Strategy<Value = &'static Algorithm> {
    let all: Vec<_> = algorithms::algorithms().collect();
    prop::sample::select(all)
}

/// The algorithm with some of its parameters given.
fn name_of(algorithm: &Algorithm, values: &[Option<String>], words: usize) -> String {
    let mut name = algorithm.name.to_owned();
    for (parameter, value) in algorithm.parameters.iter().zip(values) {
        let tries = parameter.tries();
        let value = match (&parameter.values, value) {
            (_, None) => continue,
            // A word that it takes, since others have no chance.
            (Values::Choices(_), Some(_)) => tries[words % tries.len()].to_string(),
            (Values::Counts(_), Some(value)) => value.clone(),
        };
        name += &format!(":{}={value}", parameter.key);
    }
    name
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_values_give_plans_that_hold_or_an_error(
        algorithm in algorithm(),
        values in prop::collection::vec(prop::option::of(value()), 5),
        words in any::<usize>(),
        (rank, world) in (0usize..9, 0usize..8),
        (m, n, k) in (size(), size(), size()),
        dtype in prop::sample::select(vec![DType::F16, DType::Bf16, DType::F32]),
        multicast in any::<bool>(),
    ) {
        let Ok(configuration) = algorithms::find(&name_of(algorithm, &values, words)) else {
            return Ok(());
        };
        let problem = Problem::new(m, n, k, dtype).with_multicast(multicast);
        let sound = world > 0 && m > 0 && n > 0 && k > 0;
        // A signal pad has slots for so many groups of rows that ranks reduce together.
        let groups = m.div_ceil(world.max(1)).div_ceil(configuration.options().count("rows"));
        let reduces = world > 1 && algorithm.parameters.iter().any(|p| p.key == "rows");
        let sound = sound && (groups <= 2047 || !reduces);
        prop_assert_eq!(configuration.plan(rank, world, &problem).is_ok(), sound && rank < world);
        if sound {
            let plans = configuration.plans(world, &problem).unwrap();
            for plan in &plans {
                prop_assert!(plan.kernels_do_what_they_declare());
            }
            prop_assert_eq!(configuration.operands(0, world, &problem).is_empty(), false);
        }
    }

    #[test]
    fn any_sizes_give_a_plan_or_an_error(
        algorithm in algorithm(),
        values in prop::collection::vec(prop::option::of(value()), 5),
        words in any::<usize>(),
        (rank, world) in (0usize..70, prop_oneof![1usize..70, any::<usize>()]),
        (m, n, k) in (any_size(), any_size(), any_size()),
        dtype in prop::sample::select(vec![DType::F16, DType::F32]),
    ) {
        if let Ok(configuration) = algorithms::find(&name_of(algorithm, &values, words)) {
            let _ = configuration.plan(rank, world, &Problem::new(m, n, k, dtype));
        }
    }

    #[test]
    fn any_text_is_a_name_or_an_error(text in "[a-zA-Z0-9=:.]{0,40}") {
        let _ = algorithms::find(&text);
        let _ = algorithms::find(&format!("pushChunks:{text}"));
    }
}
