//! Output while the program runs: `--log`, `RUST_LOG`, `--spans`, and nothing that was not asked for.

use serde_json::Value;

use crate::job::{self, Said, has};

const BENCH: &str = "bench --device host --shape 16x16x16 --impl naiveRemoteRead --iterations 1";

#[test]
fn each_rank_logs_what_it_was_asked_for_and_writes_its_spans() {
    let folder = tempfile::tempdir().unwrap();
    let spans = folder.path().join("spans.json");
    let line = format!("{BENCH} --log error;1:info --spans {}", spans.display());
    let outcome = job::run_line(2, &line);
    outcome.succeeded();
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
    let said = job::say(&format!("report nowhere.json --spans {}", spans.display()));
    assert_eq!(said.code, Some(1));
    let text = std::fs::read_to_string(&spans).unwrap();
    assert!(serde_json::from_str::<Vec<Value>>(&text).unwrap()[0]["name"] == "process_name");
}

#[test]
fn spans_on_a_full_disk_are_incomplete_with_a_warning() {
    let said = job::say("plan show ringGet --spans /dev/full");
    assert_eq!(said.code, Some(0), "{}", said.err);
    has(&said.err, &["warning: /dev/full is incomplete: No space"]);
}

#[test]
fn nothing_is_said_unasked_in_a_pipe() {
    let check = |more: &str, level: &str| {
        let line = format!("plan check ringGet --world 2{more}");
        let mut command = job::warpweave();
        job::said(command.args(job::args(&line)).env("RUST_LOG", level))
    };
    let quiet = job::say("plan check ringGet --world 2");
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(0), ""));
    let said = check("", "info").err;
    assert!(
        said.contains("INFO") && said.contains("ringGet") && !said.contains("[rank"),
        "{said}"
    );
    let over = check(" --log warn", "info");
    assert_eq!((over.err.as_str(), over.out), ("", quiet.out));
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none/spans.json");
    for (more, status, why) in [
        ("--log warpweave=loud".to_owned(), 2, "is no filter"),
        ("--log 0:warpweave=loud".to_owned(), 2, "is no filter"),
        ("--log warn;1:a=b=c".to_owned(), 2, "is no filter"),
        (format!("--spans {}", nowhere.display()), 1, "spans.json"),
    ] {
        let line = format!("plan check ringGet --world 2 {more}");
        let Said { code, out, err } = job::say(&line);
        assert_eq!((code, out.as_str()), (Some(status), ""), "{err}");
        has(&err, &[why]);
    }
}
