//! Schedules: every M up to the maximum has plans that are proved and closed.

use crate::fixtures::problem;
use std::collections::BTreeMap;
use warpweave_overlap::Schedule;
use warpweave_overlap::algorithms;
use warpweave_overlap::schedule::Closing;

#[test]
fn every_m_up_to_the_maximum_is_proved() {
    let began = std::time::Instant::now();
    let mut failures = BTreeMap::new();
    for configuration in algorithms::every() {
        let mut line = format!("{configuration}:");
        for multicast in [false, true] {
            for world in 1..=4 {
                let largest = problem(70).with_multicast(multicast);
                let schedule = Schedule::new(configuration.clone(), world, largest).unwrap();
                let mut entries = BTreeMap::new();
                for m in 1..=70 {
                    match schedule.checked(m) {
                        Ok(checked) => assert!(checked.is_closed()),
                        Err(error) => {
                            failures
                                .entry(format!("{configuration} {world} {multicast}"))
                                .or_insert_with(Vec::new)
                                .push((m, error.to_string()));
                            continue;
                        }
                    }
                    let entry = match schedule.closing(m).unwrap() {
                        Closing::AsBuilt => "open",
                        Closing::Grants => "grants",
                        Closing::Acknowledgements => "acks",
                        _ => "barrier",
                    };
                    entries.entry(entry).or_insert_with(Vec::new).push(m);
                }
                line += &format!(" w{world}");
                for (entry, ms) in entries {
                    line += &format!(" {entry}:{}..{}({})", ms[0], ms[ms.len() - 1], ms.len());
                }
            }
        }
        println!("{line} {:?}", began.elapsed());
    }
    for (name, list) in &failures {
        println!(
            "FAIL {name}: {:?}",
            list.iter().map(|f| f.0).collect::<Vec<_>>()
        );
        println!("{}", &list[0].1[..list[0].1.len().min(3000)]);
    }
    assert!(failures.is_empty());
}
