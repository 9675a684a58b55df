//! Random small plans: *check* and an exploration of every run agree on races and deadlocks.

use crate::fixtures::{has_deadlock, has_race};
use crate::interpreter::{Machine, Outcome, replay};
use crate::sketch::{Sketch, plans, sketch};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use warpweave_overlap::check;

/// States beyond which a schedule is not explored.
const STATES: usize = 20_000;

/// Both verdicts on one random schedule; `None` where the order of signals is itself a matter of luck, or the
/// runs are too many.
fn verdicts(sketch: &Sketch) -> Option<(Outcome, Outcome)> {
    let plans = plans(sketch);
    let report = check(&plans, 2);
    let explored = Machine::new(&plans, report.calls).explore(STATES)?;
    if explored.ambiguous {
        assert!(!report.holds(), "{plans:#?}");
        return None;
    }
    replay(&plans, &report);
    let proved = Outcome {
        race: has_race(&report),
        deadlock: has_deadlock(&report),
        ambiguous: false,
    };
    Some((proved, explored))
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    #[test]
    fn check_agrees_with_an_exploration_of_every_run(sketch in sketch()) {
        if let Some((proved, explored)) = verdicts(&sketch) {
            prop_assert_eq!(proved, explored);
        }
    }
}

#[test]
fn the_generator_makes_schedules_of_every_kind() {
    let mut runner = TestRunner::deterministic();
    let mut counts = [0; 4];
    for _ in 0..400 {
        let sketch = sketch().new_tree(&mut runner).unwrap().current();
        if let Some((proved, explored)) = verdicts(&sketch) {
            assert_eq!(proved, explored);
            counts[usize::from(proved.race) + 2 * usize::from(proved.deadlock)] += 1;
        }
    }
    assert!(
        counts.iter().all(|&n| n >= 10),
        "sound, race, deadlock, both: {counts:?}"
    );
}
