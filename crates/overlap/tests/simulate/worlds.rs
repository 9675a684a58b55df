//! Every algorithm, on small and large worlds.

use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::simulate::SimulateError;
use warpweave_overlap::{Machine, check, simulate};
use warpweave_symm_mem::DType;

#[test]
fn what_check_passes_ends_and_does_so_again_in_the_same_way() {
    let machine = Machine::named("h100x8").unwrap();
    for algorithm in &algorithms::every() {
        for world in 1..=8 {
            for m in [3, 8 * world + 3, 4096] {
                let problem = Problem::new(m, 512, 256, DType::Bf16);
                let plans = algorithm.plans(world, &problem).unwrap();
                assert!(check(&plans, 3).holds(), "{}", algorithm.name());
                let timeline = simulate(&plans, &machine, 2).unwrap();
                assert_eq!(timeline, simulate(&plans, &machine, 2).unwrap());
                for span in &timeline.spans {
                    assert!(span.start <= span.end && span.end.is_finite(), "{span:?}");
                    let after = span.after.map_or(0.0, |i| timeline.spans[i].end);
                    assert!(after <= span.end + 1e-6, "{span:?}");
                }
                let path = timeline.critical_path();
                let last = &timeline.spans[*path.last().unwrap()];
                assert_eq!(last.end, timeline.total());
                assert!(timeline.spans[path[0]].after.is_none());
            }
        }
    }
}

#[test]
fn a_faster_link_makes_no_algorithm_slower() {
    for algorithm in &algorithms::table() {
        for world in [2, 4, 8] {
            for m in [1024, 8192] {
                let problem = Problem::new(m, 3584, 4096, DType::Bf16);
                let plans = algorithm.plans(world, &problem).unwrap();
                let mut before = f64::INFINITY;
                for factor in [0.25, 0.5, 1.0, 1.5, 2.0, 4.0] {
                    let mut machine = Machine::named("h100x8").unwrap();
                    let link = &mut machine.link;
                    for rate in [
                        &mut link.gbs,
                        &mut link.copy_engine_gbs,
                        &mut link.sm_push_gbs,
                        &mut link.sm_pull_gbs,
                        &mut link.pulls_gbs,
                        &mut link.pulls_streams_gbs,
                    ] {
                        *rate *= factor;
                    }
                    let libraries = &mut machine.collectives;
                    for library in [&mut libraries.nccl, &mut libraries.symmetric_memory] {
                        for (_, us) in library.times.values_mut().flatten() {
                            *us /= factor;
                        }
                    }
                    let total = simulate(&plans, &machine, 1).unwrap().total();
                    assert!(
                        total <= before + 1e-3,
                        "{} world {world} m {m} link ×{factor}: {total} after {before}",
                        algorithm.name()
                    );
                    before = total;
                }
            }
        }
    }
}

#[test]
fn two_nodes_are_slower_than_one_of_the_same_gpus() {
    let problem = Problem::new(16384, 3584, 8192, DType::Bf16);
    // Not so for what pulls: the network adds its bandwidth to that of the switch.
    for algorithm in &algorithms::table()[..2] {
        let plans = algorithm.plans(8, &problem).unwrap();
        let apart = Machine::named("h200x4-2nodes").unwrap();
        let mut together = apart.clone();
        (together.nodes, together.gpus_per_node) = (1, 8);
        let [apart, together] = [apart, together].map(|m| simulate(&plans, &m, 1).unwrap().total());
        assert!(apart >= together, "{}", algorithm.name());
    }
}

#[test]
fn a_rank_needs_a_gpu() {
    let problem = Problem::new(64, 64, 64, DType::Bf16);
    let plans = algorithms::table()[0].plans(5, &problem).unwrap();
    let machine = Machine::named("h200x4").unwrap();
    assert!(matches!(
        simulate(&plans, &machine, 1),
        Err(SimulateError::TooFewGpus {
            gpus: 4,
            world: 5,
            ..
        })
    ));
}
