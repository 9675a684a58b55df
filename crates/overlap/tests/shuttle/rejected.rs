//! What *check* rejects goes wrong: the order of steps that it names for a race changes what is read or what
//! memory holds at the end, and the wait that it calls endless misses its deadline.

use crate::cases::cases;
use crate::ranks::{effort, seed};
use crate::unrolled::Unrolled;
use warpweave_overlap::check::{Awaited, Schedule, Step, Violation};

/// Races of one case that are replayed.
const RACES: usize = 3;

/// The schedule of a race, in which `second` comes before `first`, and the same steps with `first` before
/// `second`.
fn both_orders(schedule: &Schedule, second: &Step) -> [Vec<Step>; 2] {
    let (shared, own) = schedule.steps.split_at(schedule.shared);
    let end = own
        .iter()
        .position(|step| step == second)
        .expect("it has the race")
        + 1;
    let (early, late) = own.split_at(end);
    [
        [shared, early, late].concat(),
        [shared, late, early].concat(),
    ]
}

#[test]
fn the_schedule_of_a_race_goes_another_way() {
    let mut races = 0;
    for case in cases() {
        for violation in case.report.violations.iter().take(RACES) {
            let Violation::Race {
                second, schedule, ..
            } = violation
            else {
                continue;
            };
            println!("{}", case.name());
            // Values are written once each, so that either order leaves marks of its own, whatever else the
            // steps do.
            let [wrong, right] = both_orders(schedule, &second.step).map(|order| {
                let runs = Unrolled::in_order(&case.plans, &order).run(seed(), 2);
                assert_eq!(
                    runs[0],
                    runs[1],
                    "{}: the order is not forced: {violation}",
                    case.name()
                );
                for outcome in &runs[0] {
                    assert_eq!(
                        outcome.fault,
                        None,
                        "{}: not possible: {violation}",
                        case.name()
                    );
                }
                runs.into_iter().next().expect("two runs")
            });
            let memory = |ranks: &[crate::unrolled::Outcome]| -> Vec<_> {
                ranks.iter().map(|outcome| outcome.memory.clone()).collect()
            };
            assert_ne!(
                memory(&wrong),
                memory(&right),
                "{}: {violation}",
                case.name()
            );
            races += 1;
        }
        if races >= effort(300) {
            break;
        }
    }
}

#[test]
fn a_deadlock_meets_its_deadline() {
    let deadlocks = cases().filter_map(|case| {
        let blocked = case
            .report
            .violations
            .iter()
            .find_map(|violation| match violation {
                Violation::Deadlock { blocked, .. } => Some(blocked.clone()),
                _ => None,
            });
        blocked.map(|blocked| (case, blocked))
    });
    for (case, blocked) in deadlocks.take(effort(60)) {
        println!("{}", case.name());
        let waits: Vec<(usize, usize)> = blocked
            .iter()
            .flat_map(|blockage| {
                blockage.awaits.iter().map(|awaited| match awaited {
                    Awaited::Signal { flag, .. } => (flag.dst, flag.src),
                    Awaited::Entry { rank } => (blockage.step.rank, *rank),
                })
            })
            .collect();
        for ranks in Unrolled::free(&case.plans, case.report.calls).run(seed(), 3) {
            let faults: Vec<_> = ranks
                .iter()
                .filter_map(|outcome| outcome.fault.as_ref())
                .collect();
            assert!(
                faults
                    .iter()
                    .any(|fault| waits.contains(&(fault.rank, fault.peer))),
                "{}: {faults:?}, blocked: {blocked:?}",
                case.name()
            );
        }
    }
}
