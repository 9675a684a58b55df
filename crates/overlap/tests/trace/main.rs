//! Traces of predicted timelines.

use serde_json::Value;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, algorithms, simulate, trace};
use warpweave_symm_mem::DType;

fn traced(name: &str, world: usize) -> String {
    let problem = Problem::new(4096, 4096, 4096, DType::Bf16);
    let plans = algorithms::find(name)
        .unwrap()
        .plans(world, &problem)
        .unwrap();
    let machine = Machine::named("h200x4").unwrap();
    trace(&[&simulate(&plans, &machine, 1).unwrap()])
}

#[test]
fn copies_and_a_gemm() {
    insta::assert_snapshot!(traced("baselineCudaAllgatherMatmul", 2));
}

#[test]
fn a_kernel_with_lanes() {
    insta::assert_snapshot!(traced("threadloadGatherThenCutlass", 2));
}

#[test]
fn slices_of_a_thread_follow_each_other_and_arrows_have_two_ends() {
    for algorithm in &algorithms::table() {
        let json: Value = serde_json::from_str(&traced(&algorithm.name(), 4)).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        let of = |ph: &str| -> Vec<&Value> { events.iter().filter(|e| e["ph"] == ph).collect() };
        let mut last = std::collections::HashMap::new();
        for slice in of("X") {
            let (ts, dur) = (
                slice["ts"].as_f64().unwrap(),
                slice["dur"].as_f64().unwrap(),
            );
            let thread = (slice["pid"].to_string(), slice["tid"].to_string());
            let before = last.insert(thread, ts + dur).unwrap_or(0.0);
            assert!(ts >= before - 1e-3 && dur >= 0.0, "{slice}");
        }
        let ids = |ph| -> Vec<&Value> { of(ph).into_iter().map(|e| &e["id"]).collect() };
        assert_eq!(ids("s"), ids("f"), "{}", algorithm.name());
    }
}
