//! Output while the program runs: `--log`, `RUST_LOG`, `--spans`, and nothing that was not asked for.

use std::time::Duration;

use serde_json::Value;

use crate::job;

const PATIENT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);

const BENCH: [&str; 9] = [
    "bench",
    "--device",
    "host",
    "--shape",
    "16x16x16",
    "--impl",
    "naiveRemoteRead",
    "--iterations",
    "1",
];

#[test]
fn each_rank_logs_what_it_was_asked_for_and_writes_its_spans() {
    let folder = tempfile::tempdir().unwrap();
    let spans = folder.path().join("spans.json");
    let more = ["--log", "error;1:info", "--spans", spans.to_str().unwrap()];
    let outcome = job::run(&job::all(2, &[&BENCH[..], &more].concat()), PATIENT, LIMIT);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert!(output.status.success(), "{}", outcome.errors(rank));
    }
    assert_eq!(outcome.errors(0), "");
    let said = outcome.errors(1);
    assert!(
        said.lines().count() > 3 && !said.contains('\u{1b}'),
        "{said}"
    );
    assert!(
        said.lines()
            .all(|line| line.starts_with("[rank 1] ") && line.contains("INFO")),
        "{said}"
    );
    assert!(said.contains("16x16x16 bf16"), "{said}");
    for rank in 0..2 {
        let text =
            std::fs::read_to_string(folder.path().join(format!("spans.rank{rank}.json"))).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let count = |ph: &str, name: &str| {
            events
                .iter()
                .filter(|e| e["ph"] == ph && e["name"] == name)
                .count()
        };
        assert_eq!(count("M", "process_name"), 1);
        for name in ["bench.problem", "plan.bind", "symm.alloc", "plan.op"] {
            assert!(count("B", name) > 0, "no {name} on rank {rank}");
            assert_eq!(count("B", name), count("E", name), "{name} on rank {rank}");
        }
        assert!(events.iter().all(|event| event["pid"] == rank));
    }
    assert!(!spans.exists());
}

#[test]
fn a_failed_rank_leaves_a_whole_file_of_spans() {
    let folder = tempfile::tempdir().unwrap();
    let spans = folder.path().join("spans.json");
    let mut command = job::warpweave();
    let out = command
        .args(["report", "nowhere.json", "--spans"])
        .arg(&spans)
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = std::fs::read_to_string(&spans).unwrap();
    assert!(serde_json::from_str::<Vec<Value>>(&text).unwrap()[0]["name"] == "process_name");
}

#[test]
fn nothing_is_said_unasked_in_a_pipe() {
    let check = ["plan", "check", "ringGet", "--world", "2"];
    let quiet = job::warpweave().args(check).output().unwrap();
    assert!(
        quiet.status.success() && quiet.stderr.is_empty(),
        "{quiet:?}"
    );
    let asked = job::warpweave()
        .args(check)
        .env("RUST_LOG", "info")
        .output()
        .unwrap();
    let said = String::from_utf8(asked.stderr).unwrap();
    assert!(
        said.contains("INFO") && said.contains("ringGet") && !said.contains("[rank"),
        "{said}"
    );
    let over = job::warpweave()
        .args(check)
        .args(["--log", "warn"])
        .env("RUST_LOG", "info")
        .output()
        .unwrap();
    assert!(over.stderr.is_empty(), "{over:?}");
    assert_eq!(over.stdout, quiet.stdout);
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none/spans.json");
    let check = ["plan", "check", "ringGet", "--world", "2"];
    for (more, status, why) in [
        (["--log", "warpweave=loud"], 2, "is no filter"),
        (["--spans", nowhere.to_str().unwrap()], 1, "spans.json"),
    ] {
        let out = job::warpweave().args(check).args(more).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(status), "{error}");
        assert!(error.contains(why) && out.stdout.is_empty(), "{error}");
    }
}
