//! `warpweave timeline` on the host backend, by real processes.

use crate::job::{self, has};

#[test]
fn a_call_of_four_host_ranks_is_traced_beside_its_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let line = "timeline rowParallelLinear --shape 64x48x40 --dtype bf16 --device host";
    let line = format!("{line} --machine h200x4 --out {}", file.display());
    let said = job::run_line(4, &line).succeeded();
    has(
        &said,
        &["(simulated)", "(measured)", "all-reduce", "perfetto"],
    );
    let text = std::fs::read_to_string(&file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names = json["traceEvents"].as_array().unwrap().iter();
    let processes = names.filter(|event| event["name"] == "process_name");
    assert_eq!(processes.count(), 8);
}

#[test]
fn what_cannot_be_traced_is_an_error_on_every_rank() {
    let outcome = job::run_line(2, "timeline fastest --device host --out trace.json");
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert_eq!(output.status.code(), Some(1));
        has(&outcome.errors(rank), &["fastest"]);
    }
}
