//! Random scripts, shrunk where they fail, against the arithmetic of `values`.

use std::time::Duration;

use proptest::prelude::*;
use warpweave_comm::collective::Variant;

use crate::case::{Case, DTYPES, OPERATIONS, Reach};
use crate::host::on_threads;
use crate::play::Step;

fn case() -> impl Strategy<Value = Case> {
    let variant = proptest::sample::select(&OPERATIONS[..]).prop_flat_map(|operation| {
        let variants = Variant::of(operation);
        (Just(operation), proptest::sample::select(variants))
    });
    let count = prop_oneof![0..8usize, 8..200usize, 200..4000usize];
    let dtype = proptest::sample::select(&DTYPES[..]);
    let reach = proptest::sample::select(&Reach::ALL[..]);
    (
        variant,
        dtype,
        count,
        reach,
        0..8usize,
        0..4usize,
        any::<bool>(),
    )
        .prop_map(
            |((operation, variant), dtype, count, reach, root, offset, in_place)| Case {
                root,
                offset,
                in_place,
                ..Case::new(operation, variant, dtype, count, reach)
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => case().prop_map(Step::Call),
        1 => (0..8usize, 0..500u64).prop_map(|(rank, micros)| Step::Delay { rank, micros }),
        1 => (0..8usize, 0..500u64).prop_map(|(rank, micros)| Step::Sleep { rank, micros }),
        1 => Just(Step::Barrier),
        2 => (proptest::collection::vec(case(), 1..4), 1..4usize)
            .prop_map(|(cases, times)| Step::Replay { cases, times }),
    ]
}

/// The roots that there are in a world.
fn in_world(steps: &[Step], world: usize) -> Vec<Step> {
    let within = |case: &Case| Case {
        root: case.root % world,
        ..*case
    };
    let step = |step: &Step| match step {
        Step::Call(case) => Step::Call(within(case)),
        Step::Replay { cases, times } => Step::Replay {
            cases: cases.iter().map(within).collect(),
            times: *times,
        },
        other => other.clone(),
    };
    steps.iter().map(step).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        max_shrink_iters: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_scripts_give_what_the_model_says(
        world in 1..5usize,
        steps in proptest::collection::vec(step(), 1..24),
        seed in 0..u64::from(u16::MAX),
    ) {
        let steps = in_world(&steps, world);
        let played = on_threads(world, Duration::from_secs(30), |rank| rank.play(&steps, seed));
        prop_assert!(played.is_ok(), "{}", played.unwrap_err());
    }
}
