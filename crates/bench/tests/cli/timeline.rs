//! `warpweave timeline` on the host backend, by real processes.

use crate::job;

use std::time::Duration;

const PATIENT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn a_call_of_four_host_ranks_is_traced_beside_its_prediction() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let path = file.to_str().unwrap();
    let what = ["timeline", "rowParallelLinear", "--shape", "64x48x40"];
    let how = [
        "--dtype",
        "bf16",
        "--device",
        "host",
        "--machine",
        "h200x4",
        "--out",
        path,
    ];
    let outcome = job::run(&job::all(4, &[&what[..], &how].concat()), PATIENT, LIMIT);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert!(output.status.success(), "{}", outcome.errors(rank));
    }
    let said = String::from_utf8_lossy(&outcome.ranks[0].stdout).into_owned();
    for part in ["(simulated)", "(measured)", "all-reduce", "perfetto"] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names = json["traceEvents"].as_array().unwrap().iter();
    let processes = names.filter(|event| event["name"] == "process_name");
    assert_eq!(processes.count(), 8);
}

#[test]
fn what_cannot_be_traced_is_an_error_on_every_rank() {
    let args = job::args("timeline fastest --device host --out trace.json");
    let outcome = job::run(&job::all(2, &args), PATIENT, LIMIT);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert_eq!(output.status.code(), Some(1));
        assert!(outcome.errors(rank).contains("fastest"));
    }
}
