//! What *check* passes computes the same under every schedule.

use crate::cases::cases;
use crate::ranks::{effort, seed};
use crate::unrolled::Unrolled;
use warpweave_overlap::check::Violation;

/// One call more than the proof unrolls.
const CALLS: usize = 3;

#[test]
fn sound_plans_read_the_same_under_every_schedule() {
    // A read of what nobody has written is rubbish, but always the same.
    let sound = cases().filter(|case| {
        let unwritten = |v: &Violation| matches!(v, Violation::Unwritten { .. });
        case.report.violations.iter().all(unwritten)
    });
    for case in sound.take(effort(100)) {
        println!("{}", case.name());
        let runs = Unrolled::free(&case.plans, CALLS).run(seed(), 20);
        for ranks in &runs {
            for (rank, outcome) in ranks.iter().enumerate() {
                assert_eq!(outcome.fault, None, "{}", case.name());
                let same = *outcome == runs[0][rank];
                assert!(same, "rank {rank} of {}: {:#?}", case.name(), case.plans);
            }
        }
    }
}
