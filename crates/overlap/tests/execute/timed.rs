//! Timelines of calls that ran.

use std::collections::HashMap;

use crate::fixtures::{calls, gemm, on_ranks};
use crate::host;
use serde_json::Value;
use warpweave_overlap::check::Site;
use warpweave_overlap::plan::{Activation, OpKind, Problem, Scaling};
use warpweave_overlap::timeline::Origin;
use warpweave_overlap::{Machine, Timeline, algorithms, simulate, trace};
use warpweave_symm_mem::DType;

const WORLD: usize = 3;
const PROBLEM: Problem = Problem {
    m: 10,
    n: 17,
    k: 33,
    dtype: DType::Bf16,
    multicast: false,
    batch_invariant: false,
    scaling: Scaling::None,
    activation: Activation::None,
};

/// The timeline of a call between others, and what the calls after it computed.
fn timelines(name: &'static str) -> Vec<(Timeline, Vec<Vec<u8>>)> {
    on_ranks(WORLD, host, move |rank| {
        let (me, world) = rank.place();
        let plan = algorithms::find(name).unwrap().plan(me, world, &PROBLEM);
        let mut bound = rank.bind(plan.unwrap()).unwrap();
        calls(&mut bound, &PROBLEM, 2).unwrap();
        let timeline = rank.executor.timeline(&bound).unwrap();
        let outputs = calls(&mut bound, &PROBLEM, 2).unwrap();
        rank.exchange.barrier("end").unwrap();
        (timeline, outputs)
    })
}

#[test]
fn every_operation_of_every_rank_has_its_time() {
    for name in ["pushChunks", "ringGet", "threadloadGatherThenCutlass"] {
        let got = timelines(name);
        for (timeline, outputs) in &got {
            assert_eq!(*timeline, got[0].0, "all ranks see the same");
            assert!(
                outputs
                    .iter()
                    .enumerate()
                    .all(|(call, c)| *c == gemm(&PROBLEM, call))
            );
        }
        let timeline = &got[0].0;
        assert_eq!((timeline.origin, timeline.world), (Origin::Measured, WORLD));
        let plans = algorithms::find(name)
            .unwrap()
            .plans(WORLD, &PROBLEM)
            .unwrap();
        let ops: usize = plans.iter().map(|plan| plan.ops.len()).sum();
        assert_eq!(timeline.spans.len(), ops, "{name}");
        let mut streams: HashMap<(usize, usize), f64> = HashMap::new();
        for span in &timeline.spans {
            let before = streams.insert((span.rank, span.stream), span.end);
            assert!(
                span.start >= before.unwrap_or(0.0) && span.end >= span.start,
                "{name}: {span:?}"
            );
        }
    }
}

#[test]
fn a_wait_ends_after_the_signal_that_it_waits_for() {
    let (timeline, _) = &timelines("ringPut")[0];
    let plans = algorithms::find("ringPut")
        .unwrap()
        .plans(WORLD, &PROBLEM)
        .unwrap();
    let ready = |rank: usize, wanted: fn(&OpKind) -> bool| -> Vec<(f64, f64)> {
        let spans = timeline.spans.iter().filter(|span| span.rank == rank);
        spans
            .filter(|span| match span.site {
                Site::Op(op) => wanted(&plans[rank].ops[op].kind) && span.text.contains("ready"),
                _ => false,
            })
            .map(|span| (span.start, span.end))
            .collect()
    };
    for rank in 0..WORLD {
        let signals = ready(rank, |kind| matches!(kind, OpKind::Signal { .. }));
        let waits = ready((rank + 1) % WORLD, |kind| {
            matches!(kind, OpKind::Wait { .. })
        });
        assert_eq!((signals.len(), waits.len()), (WORLD - 1, WORLD - 1));
        for ((began, _), (_, ended)) in signals.iter().zip(&waits) {
            // Ranks agree on the time up to what a barrier on the host leaves apart.
            assert!(ended + 20_000.0 > *began, "{began} {ended}");
        }
    }
}

#[test]
fn predicted_and_measured_stand_in_one_file() {
    let (measured, _) = &timelines("pushChunks")[0];
    let plans = algorithms::find("pushChunks")
        .unwrap()
        .plans(WORLD, &PROBLEM)
        .unwrap();
    let predicted = simulate(&plans, &Machine::named("h200x4").unwrap(), 1).unwrap();
    let json: Value = serde_json::from_str(&trace(&[&predicted, measured])).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|e| e["name"] == "process_name");
    let names: HashMap<u64, &str> = names
        .map(|e| {
            (
                e["pid"].as_u64().unwrap(),
                e["args"]["name"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(names.len(), 2 * WORLD);
    assert_eq!(names[&1], "rank 1, simulated on h200x4");
    assert_eq!(names[&4], "rank 1, measured on host");
    for pid in 0..2 * WORLD as u64 {
        let gemms = events.iter().filter(|e| {
            e["pid"] == pid && e["ph"] == "X" && e["name"].as_str().unwrap().starts_with("gemm")
        });
        assert!(gemms.count() >= 2, "{pid}");
    }
    let times: Vec<&Value> = json["otherData"]["timelines"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(
        (times[0]["times"].as_str(), times[1]["times"].as_str()),
        (Some("simulated"), Some("measured"))
    );
}
