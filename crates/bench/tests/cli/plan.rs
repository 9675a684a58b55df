//! `warpweave plan`, which touches no device and needs no job, and `warpweave timeline`, by real processes.

use crate::job::{self, Said, has};

/// What `warpweave plan` says, which must end with `code`.
#[track_caller]
fn plan(line: &str, code: i32) -> Said {
    let said = job::say(&format!("plan {line}"));
    assert_eq!(said.code, Some(code), "{line}: {}{}", said.out, said.err);
    said
}

#[test]
fn all_plans_hold_at_two_and_four_ranks() {
    let Said { out, .. } = plan("check all --world 2,4 --calls 3", 0);
    for name in ["baselineNcclAllgatherMatmul", "multimemGatherThenCutlass"] {
        assert!(out.matches(name).count() >= 2, "{out}");
    }
}

#[test]
fn a_plan_is_shown_for_the_rank_that_was_asked_for() {
    let line = "show baselineCudaAllgatherMatmul --world 3 --rank 2 --shape 30x20x10";
    let shown = plan(line, 0).out;
    has(&shown, &["baselineCudaAllgatherMatmul", "rank 2 of 3"]);
}

#[test]
fn what_does_not_exist_is_an_error() {
    for (line, parts) in [
        ("show fastest", ["fastest", "naiveRemoteRead"]),
        ("check fastest", ["fastest", "naiveRemoteRead"]),
        (
            "show naiveRemoteRead --world 2 --rank 2",
            ["rank 2", "0..2"],
        ),
        (
            "show naiveRemoteRead --world 0",
            ["--world", "0 is not in 1"],
        ),
        ("check all --world 2,0", ["--world", "0 is not in 1"]),
        ("check all --calls 0", ["--calls", "0 is not in 1"]),
        ("simulate ringGet --world 0", ["--world", "0 is not in 1"]),
        (
            "explain all-gather-matmul --world 0",
            ["--world", "0 is not in 1"],
        ),
        ("evaluate", ["nothing was measured", "--measured"]),
    ] {
        has(&plan(line, 2).err, &parts);
    }
}

#[test]
fn plans_of_too_many_steps_are_errors_that_say_how_many() {
    for (verb, more, code, what) in [
        ("check", "--world 8", 1, "not proved: 6"),
        ("check", "--world 512", 2, "in a call"),
        ("check", "--world 18446744073709551615", 2, "at most"),
        (
            "check",
            "--world 2 --calls 18446744073709551615",
            1,
            "not proved: 18446744073709551615 steps",
        ),
        ("show", "--world 100000", 2, "ranks is 100000"),
        ("simulate", "--calls 100", 2, "fewer"),
    ] {
        let chunked = "pushChunks:chunks=1024 --shape 1048576x8x8";
        let Said { out, err, .. } = plan(&format!("{verb} {chunked} {more}"), code);
        has(&format!("{out}{err}"), &[what]);
    }
    let error = plan("show fusedAllReduce:rows=0", 2).err;
    has(&error, &["rows=0", "1 to 1024"]);
}

#[test]
fn a_simulation_says_how_long_and_by_way_of_what() {
    let line = "simulate baselineCudaAllgatherMatmul --dtype bf16 --shape 8192x3584x8192";
    has(&plan(line, 0).out, &["h200x4", "critical path", "gemm"]);
    let line = "simulate fusedAllGather --dtype e4m3 --scales tensor --shape 8192x3584x8192";
    has(&plan(line, 0).out, &["h200x4", "critical path"]);
    let error = plan("simulate fusedAllGather --scales row", 2).err;
    has(&error, &["--scales", "f16"]);
    let checked = plan("check all --dtype e4m3 --world 2 --shape 64x64x64", 0).out;
    has(&checked, &["fusedAllGather", "fusedReduceScatter"]);
    let error = plan("simulate naiveRemoteRead --machine none", 2).err;
    has(&error, &["none", "h100x8"]);
    let error = plan("simulate naiveRemoteRead --world 5", 2).err;
    has(&error, &["5 GPUs"]);
}

#[test]
fn a_trace_of_a_machine_of_ones_own_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (machine, trace) = (dir.path().join("mine.toml"), dir.path().join("trace.json"));
    let text = include_str!("../../../overlap/machines/h200x4.toml");
    std::fs::write(&machine, text.replace("\"h200x4\"", "\"mine\"")).unwrap();
    let [machine, file] = [&machine, &trace].map(|p| p.to_str().unwrap());
    let line = "trace threadloadGatherThenCutlass --world 2";
    plan(&format!("{line} --machine {machine} --out {file}"), 0);
    let json = job::read_json(&trace);
    assert_eq!(json["otherData"]["timelines"][0]["machine"], "mine");
    assert!(json["traceEvents"].as_array().unwrap().len() > 10);
}

#[test]
fn a_choice_is_explained_and_held_against_what_was_measured() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");
    let report = format!("{results}recipes-4xh200.json");
    let folder = tempfile::tempdir().unwrap();
    let lines = folder.path().join("measured.tsv");
    std::fs::write(&lines, "pushChunks\t4\t8192x3584x8192\tbf16\t600.5\n").unwrap();
    let both = format!("{report},{}", lines.display());
    let line = format!("explain all-gather-matmul --measured {both}");
    let out = plan(&format!("{line} --shape 8192x3584x8192 --dtype bf16"), 0).out;
    has(&out, &["h200x4", "measured", "limit", "critical path"]);
    has(&out, &["The next algorithm"]);
    let evaluated = plan(&format!("evaluate --measured {report}"), 0).out;
    has(&evaluated, &["9 problems"]);
    let error = plan("explain all-scatter", 2).err;
    has(&error, &["all-scatter", "row-parallel-linear"]);
    let error = plan("evaluate --measured nowhere.json", 1).err;
    has(&error, &["nowhere.json"]);
}

#[test]
fn what_was_measured_is_compared_with_what_is_predicted() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");
    let reports = [2, 4].map(|world| format!("{results}fused-matmul-{world}xh200.json"));
    let out = plan(&format!("compare --measured {}", reports.join(",")), 0).out;
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
    let median = |out: &str| -> f64 {
        let last = out.lines().last().unwrap();
        has(last, &["figures on h200x4: median error"]);
        let mut numbers = last.split(&[' ', ','][..]).filter_map(|w| w.parse().ok());
        numbers.nth(1).unwrap()
    };
    assert!(median(&out) < 0.15, "{out}");
    // Furthest off first, and no more rows than asked for.
    let few = plan(&format!("compare --rows 2 --measured {}", reports[1]), 0).out;
    let rows = few.lines();
    let rows = rows.filter(|line| line.contains(" f16 ") || line.contains(" bf16 "));
    assert_eq!(rows.count(), 2);
    has(&plan("compare", 2).err, &["--measured"]);
    let scaled = format!("compare --measured {results}recipes-e4m3-4xh200.json");
    let out = plan(&scaled, 0).out;
    has(
        &out,
        &["fusedAllGather", "8192x3584x8192 e4m3 scales by row"],
    );
    assert!(median(&out) < 0.08, "{out}");
}

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
    let json = job::read_json(&file);
    let names = json["traceEvents"].as_array().unwrap().iter();
    let processes = names.filter(|event| event["name"] == "process_name");
    assert_eq!(processes.count(), 8);
}

#[test]
fn what_cannot_be_traced_is_an_error_on_every_rank() {
    let outcome = job::run_line(2, "timeline fastest --device host --out trace.json");
    for rank in [0, 1] {
        has(&outcome.ended(rank, Some(2)), &["fastest"]);
    }
}

/// The figures of the guide to several hosts are what the command that it names prints.
#[test]
fn the_guide_to_hosts_says_what_is_simulated() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/hosts.md");
    let Ok(guide) = std::fs::read_to_string(guide) else {
        eprintln!("skipped: there is no guide next to this package");
        return;
    };
    let mut compared = 0;
    for line in guide.lines() {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [hosts, shape, name, us] = cells[..] else {
            continue;
        };
        let Ok(hosts) = hosts.parse::<usize>() else {
            continue;
        };
        let (name, world) = (name.trim_matches('`'), 8 * hosts);
        let machine = format!("--machine h100x8:nodes={hosts}");
        let line =
            format!("simulate {name} --world {world} --shape {shape} --dtype bf16 {machine}");
        has(&plan(&line, 0).out, &[&format!("{world} ranks: {us} µs")]);
        compared += 1;
    }
    assert_eq!(compared, 12);
}

#[test]
fn output_to_a_full_disk_is_an_error_that_says_so() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let ended = job::said(
        job::warpweave()
            .args(["plan", "show", "ringGet"])
            .stdout(full),
    );
    assert_eq!(ended.code, Some(1));
    has(
        &ended.err,
        &["error: cannot write to standard output: No space"],
    );
}
