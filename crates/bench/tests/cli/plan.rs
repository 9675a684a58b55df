//! `warpweave plan`, which touches no device and needs no job.

use crate::job;

fn plan(args: &[&str]) -> (Option<i32>, String, String) {
    let output = job::warpweave().arg("plan").args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn all_plans_hold_at_two_and_four_ranks() {
    let (code, out, err) = plan(&["check", "all", "--world", "2,4", "--calls", "3"]);
    assert_eq!(code, Some(0), "{out}{err}");
    for name in ["baselineNcclAllgatherMatmul", "multimemGatherThenCutlass"] {
        assert!(out.matches(name).count() >= 2, "{out}");
    }
}

#[test]
fn a_plan_is_shown_for_the_rank_that_was_asked_for() {
    let args = job::args("show baselineCudaAllgatherMatmul --world 3 --rank 2");
    let (code, out, err) = plan(&[&args[..], &["--shape", "30x20x10"]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("baselineCudaAllgatherMatmul") && out.contains("rank 2 of 3"),
        "{out}"
    );
}

#[test]
fn what_does_not_exist_is_an_error() {
    let (code, _, err) = plan(&["show", "fastest"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("fastest") && err.contains("naiveRemoteRead"),
        "{err}"
    );
    let (code, _, err) = plan(&["show", "naiveRemoteRead", "--world", "2", "--rank", "2"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("rank 2"), "{err}");
    let (code, _, _) = plan(&["check", "all", "--calls", "0"]);
    assert_eq!(code, Some(2));
}

#[test]
fn plans_of_too_many_steps_are_errors_that_say_how_many() {
    let chunked = ["pushChunks:chunks=1024", "--shape", "1048576x8x8"];
    for (args, what) in [
        (&["check", "--world", "8"][..], "not proved: 6"),
        (&["check", "--world", "512"], "in a call"),
        (&["check", "--world", "18446744073709551615"], "at most"),
        (
            &["check", "--world", "2", "--calls", "18446744073709551615"],
            "not proved: 18446744073709551615 steps",
        ),
        (&["show", "--world", "100000"], "ranks is 100000"),
        (&["simulate", "--calls", "100"], "fewer"),
    ] {
        let (code, out, err) = plan(&[&args[..1], &chunked, &args[1..]].concat());
        assert_eq!(code, Some(1), "{args:?}: {out}{err}");
        assert!(format!("{out}{err}").contains(what), "{args:?}: {out}{err}");
    }
    let (code, _, err) = plan(&["show", "fusedAllReduce:rows=0"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("rows=0") && err.contains("1 to 1024"), "{err}");
}

#[test]
fn a_simulation_says_how_long_and_by_way_of_what() {
    let args = ["simulate", "baselineCudaAllgatherMatmul", "--dtype", "bf16"];
    let shape = ["--shape", "8192x3584x8192"];
    let (code, out, err) = plan(&[&args[..], &shape].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("h200x4") && out.contains("critical path") && out.contains("gemm"),
        "{out}"
    );
    let (code, _, err) = plan(&["simulate", "naiveRemoteRead", "--machine", "none"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("none") && err.contains("h100x8"), "{err}");
    let (code, _, err) = plan(&["simulate", "naiveRemoteRead", "--world", "5"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("5 GPUs"), "{err}");
}

#[test]
fn a_trace_of_a_machine_of_ones_own_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, trace) = (dir.path().join("mine.toml"), dir.path().join("trace.json"));
    let text = include_str!("../../../overlap/machines/h200x4.toml");
    std::fs::write(&machine, text.replace("\"h200x4\"", "\"mine\"")).unwrap();
    let [machine, file] = [&machine, &trace].map(|p| p.to_str().unwrap());
    let args = ["trace", "threadloadGatherThenCutlass", "--world", "2"];
    let (code, _, err) = plan(&[&args[..], &["--machine", machine, "--out", file]].concat());
    assert_eq!(code, Some(0), "{err}");
    let json = std::fs::read_to_string(&trace).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["otherData"]["timelines"][0]["machine"], "mine");
    assert!(json["traceEvents"].as_array().unwrap().len() > 10);
}

#[test]
fn a_choice_is_explained_and_held_against_what_was_measured() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");
    let report = format!("{results}fused-matmul-4xh200.json");
    let shape = ["--shape", "8192x3584x8192", "--dtype", "bf16"];
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("measured.tsv");
    std::fs::write(&lines, "pushChunks\t4\t8192x3584x8192\tbf16\t600.5\n").unwrap();
    let both = format!("{report},{}", lines.display());
    let args = ["explain", "all-gather-matmul", "--measured", &both];
    let (code, out, err) = plan(&[&args[..], &shape].concat());
    assert_eq!(code, Some(0), "{err}");
    for part in [
        "h200x4",
        "measured",
        "limit",
        "critical path",
        "The next algorithm",
    ] {
        assert!(out.contains(part), "{part} in\n{out}");
    }
    let (code, out, err) = plan(&["evaluate", "--measured", &report]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("3 problems"), "{out}");
    let (code, _, err) = plan(&["explain", "all-scatter"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("all-scatter") && err.contains("row-parallel-linear"),
        "{err}"
    );
    let (code, _, err) = plan(&["evaluate", "--measured", "nowhere.json"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("nowhere.json"), "{err}");
}

#[test]
fn what_was_measured_is_compared_with_what_is_predicted() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");
    let reports = [2, 4].map(|world| format!("{results}fused-matmul-{world}xh200.json"));
    let (code, out, err) = plan(&["compare", "--measured", &reports.join(",")]);
    assert_eq!(code, Some(0), "{err}");
    let line = |name: &str, problem: &str| -> Vec<f64> {
        let mut lines = out.lines();
        let line = lines.find(|line| line.contains(name) && line.contains(problem));
        let cells = line
            .unwrap_or_else(|| panic!("{name} in\n{out}"))
            .split('|');
        cells.filter_map(|cell| cell.trim().parse().ok()).collect()
    };
    // Ranks, measured without the empty call of that problem (25.2 − 3.1 µs on one of the two), simulated,
    // ratio.
    let row = line("threadloadGatherThenCutlass", "1024x1024x1024");
    assert!(
        [2.0, 4.0].contains(&row[0]) && (10.0..24.0).contains(&row[1]),
        "{row:?}"
    );
    assert!((row[2] / row[1] - row[3]).abs() < 0.01, "{row:?}");
    assert_eq!(
        line("GEMM alone (all-gather-matmul)", "8192x3584x8192").len(),
        4
    );
    let last = out.lines().last().unwrap();
    let median: f64 = last
        .split(&[' ', ','][..])
        .filter_map(|w| w.parse().ok())
        .nth(1)
        .unwrap();
    assert!(
        last.contains("figures on h200x4: median error") && median < 0.15,
        "{last}"
    );
    // Furthest off first, and no more rows than asked for.
    let (_, few, _) = plan(&["compare", "--rows", "2", "--measured", &reports[1]]);
    assert_eq!(
        few.lines()
            .filter(|line| line.contains(" f16 ") || line.contains(" bf16 "))
            .count(),
        2
    );
    let (code, _, err) = plan(&["compare"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--measured"), "{err}");
}
