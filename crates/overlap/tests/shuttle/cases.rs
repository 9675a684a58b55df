//! A sequence of random plans, always the same for a seed: sketches, and algorithms with a mistake in them.

use crate::ranks::{only_case, seed};
use crate::sketch::{plans, sketch};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use warpweave_overlap::check::Violation;
use warpweave_overlap::plan::{Plan, Problem, StreamId};
use warpweave_overlap::{Report, algorithms, check};
use warpweave_symm_mem::DType;

/// The plans of all ranks and what *check* says of them.
pub struct Case {
    /// Place in the sequence.
    index: u64,
    pub plans: Vec<Plan>,
    pub report: Report,
}

impl Case {
    /// How to get here again.
    pub fn name(&self) -> String {
        let Case { index, plans, .. } = self;
        format!(
            "{}: WARPWEAVE_SHUTTLE_SEED={} WARPWEAVE_SHUTTLE_CASE={index}",
            plans[0].name,
            seed()
        )
    }
}

/// Random plans that can be unrolled, and in which the order of signals, waits and collectives is not itself
/// a matter of luck: what such a wait is for, no schedule can say.
pub fn cases() -> impl Iterator<Item = Case> {
    let bytes: Vec<u8> = seed().to_le_bytes().repeat(4);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = prop_oneof![sketch().prop_map(|sketch| plans(&sketch)), mistaken()];
    let case = move |index| {
        let plans = strategy
            .new_tree(&mut runner)
            .expect("nothing is rejected")
            .current();
        let report = check(&plans, 2);
        Case {
            index,
            plans,
            report,
        }
    };
    let wanted = |case: &Case| {
        let vague = |v: &Violation| {
            matches!(
                v,
                Violation::Unordered { .. } | Violation::CollectiveMismatch { .. }
            )
        };
        only_case().is_none_or(|only| only == case.index)
            && case.report.steps > 0
            && !case.report.violations.iter().any(vague)
    };
    (0..=only_case().unwrap_or(u64::MAX))
        .map(case)
        .filter(wanted)
}

/// A mistake in one rank's list of operations.
#[derive(Clone, Debug)]
enum Mistake {
    LeftOut,
    TooEarly,
    OnStream(Index),
}

/// The plans of an algorithm, one rank of which makes a mistake.
fn mistaken() -> impl Strategy<Value = Vec<Plan>> {
    let mistake = prop_oneof![
        Just(Mistake::LeftOut),
        Just(Mistake::TooEarly),
        any::<Index>().prop_map(Mistake::OnStream),
    ];
    let places = (any::<Index>(), any::<Index>(), any::<Index>());
    (2..=3usize, places, mistake).prop_map(|(world, (algorithm, rank, at), mistake)| {
        let problem = Problem::new(world + 1, 1, 2, DType::F32);
        // Some are for more ranks.
        let all: Vec<Vec<Plan>> = algorithms::every()
            .iter()
            .filter_map(|algorithm| algorithm.plans(world, &problem).ok())
            .filter(|plans| plans.iter().all(|plan| !plan.ops.is_empty()))
            .collect();
        let mut plans = algorithm.get(&all).clone();
        let Plan { ops, streams, .. } = &mut plans[rank.index(world)];
        let at = at.index(ops.len());
        match mistake {
            Mistake::LeftOut => drop(ops.remove(at)),
            Mistake::TooEarly => ops.swap(at, at.saturating_sub(1)),
            Mistake::OnStream(other) => ops[at].stream = StreamId(other.index(streams.len())),
        }
        plans
    })
}
