//! What is worth a try is tried once.

use crate::fixtures::problem;
use std::collections::BTreeSet;
use warpweave_overlap::algorithms::{self, Algorithm, Configuration};
use warpweave_overlap::plan::Plan;

/// More than the ranks have chunks, and no multiple of anything.
const ROWS: usize = 259;

/// The configuration's plan apart from its name, as text, so that plans can be found in a set.
fn plan(configuration: &Configuration) -> String {
    let plan = configuration.plan(1, 16, &problem(ROWS)).unwrap();
    let nameless = Plan {
        name: String::new(),
        ..plan
    };
    serde_json::to_string(&nameless).unwrap()
}

/// Every combination of the tries of an algorithm's parameters.
fn combinations(algorithm: &Algorithm) -> Vec<Configuration> {
    let default = algorithms::find(algorithm.name).unwrap();
    let mut all = vec![default];
    for parameter in algorithm.parameters {
        let with_each = |configuration: Configuration| {
            let tries = parameter.tries().into_iter();
            tries.map(move |value| {
                let option = format!("{}={value}", parameter.key);
                configuration.clone().with(&option).unwrap()
            })
        };
        all = all.into_iter().flat_map(with_each).collect();
    }
    all
}

#[test]
fn no_two_candidates_are_the_same_plan() {
    for algorithm in algorithms::algorithms() {
        let mut plans = BTreeSet::new();
        for candidate in Configuration::combinations(algorithm) {
            assert!(plans.insert(plan(&candidate)), "{candidate} is another too");
        }
    }
}

#[test]
fn what_is_no_candidate_is_the_plan_of_one() {
    for algorithm in algorithms::algorithms() {
        let candidates = Configuration::combinations(algorithm);
        let plans: BTreeSet<String> = candidates.iter().map(plan).collect();
        for other in combinations(algorithm) {
            assert!(plans.contains(&plan(&other)), "{other} is no candidate");
        }
        assert_eq!(candidates[0], Configuration::with_defaults(algorithm));
    }
}
