//! Whole runs on the host backend, by four real processes.

use crate::job::{self, Said, has};

const ROWS: [&str; 9] = [
    "baselineNcclAllgatherMatmul",
    "baselineCudaAllgatherMatmul",
    "naiveRemoteRead",
    "threadloadGatherScalarCompute",
    "multimemGatherScalarCompute",
    "threadloadGatherThenCutlass",
    "multimemGatherThenCutlass",
    "fusedAllGather",
    "fusedAllGather:protocol=eager",
];

#[test]
fn four_ranks_measure_and_verify_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let document = folder.path().join("report.md");
    let line = "bench --device host --shape 66x40x24 --shape 37x21x35 --iterations 4 --dtype f16";
    let files = format!(
        "--json {} --markdown {}",
        file.display(),
        document.display()
    );
    let table = job::run_line(4, &format!("{line} {files}")).succeeded();
    let document = std::fs::read_to_string(document).unwrap();
    for line in [
        "all-gather-matmul, M×N×K = 66x40x24, f16, 4 ranks",
        "all-gather-matmul, M×N×K = 37x21x35, f16, 4 ranks",
    ] {
        assert!(table.contains(line), "{table}");
        assert!(document.contains(&format!("\n## {line}\n")), "{document}");
    }
    for name in ROWS {
        assert_eq!(
            document.matches(&format!("\n| {name} |")).count(),
            2,
            "{name}: {document}"
        );
    }
    let widest = table.lines().filter(|line| {
        ROWS.iter()
            .any(|name| line.starts_with(&format!("{name} ")))
    });
    for line in widest {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let breakdown = "threadloadGatherThenCutlass: empty call ";
    assert_eq!(table.matches(breakdown).count(), 2, "{table}");
    assert_eq!(document.matches(breakdown).count(), 2, "{document}");
    let report = job::read_json(file);
    assert_eq!(report["schema"], "warpweave-bench/2");
    let provenance = &report["provenance"];
    assert_eq!(provenance["ranks"], 4);
    assert_eq!(provenance["devices"][0]["count"], 4);
    assert!(
        provenance["host"]["system"]
            .as_str()
            .unwrap()
            .starts_with("Linux ")
    );
    for of_gpus in ["cuda", "driver", "nccl", "cublaslt"] {
        assert!(provenance[of_gpus].is_null(), "{of_gpus}: {provenance}");
    }
    assert_eq!(report["results"].as_array().unwrap().len(), 2);
    for (result, (m, n)) in report["results"]
        .as_array()
        .unwrap()
        .iter()
        .zip([(66, 40), (37, 21)])
    {
        let rows = result["rows"].as_array().unwrap();
        let names: Vec<_> = rows
            .iter()
            .map(|row| row["implementation"].as_str().unwrap())
            .collect();
        assert_eq!(names, ROWS);
        assert!(result["limit"]["ms"].as_f64().unwrap() > 0.0);
        let breakdown = &result["breakdown"];
        assert_eq!(breakdown["implementation"], "threadloadGatherThenCutlass");
        for part in ["empty", "handshake", "gather", "gemm", "together"] {
            let spread = &breakdown[format!("{part}_ms")];
            assert_eq!(spread["samples"], 6, "{part}: {breakdown}");
        }
        assert_eq!(breakdown["together_ms"], rows[5]["single_ms"]);
        for row in rows {
            let name = &row["implementation"];
            assert_eq!(row["status"], "ok", "{name}: {}", row["reason"]);
            assert_eq!(row["single_ms"]["samples"], 6, "{name}");
            for time in ["single_ms", "back_to_back_ms", "graph_ms"] {
                assert!(row[time]["median"].as_f64().unwrap() > 0.0, "{name} {time}");
            }
            // Before and after the timing, as calls and as replays, three sets of integers and two of reals;
            // all ranks.
            let verified = &row["verification"];
            assert_eq!(verified["calls"], 2 * 2 * 5, "{name}");
            assert_eq!(verified["elements"], 20 * 4 * m * n, "{name}");
            assert_eq!(verified["exact_elements"], 12 * 4 * m * n, "{name}");
            assert_eq!(verified["wrong"], 0, "{name}");
            assert!(verified["relative_error"].as_f64().unwrap() > 0.0, "{name}");
            let baseline = rows[0]["single_ms"]["median"].as_f64().unwrap();
            let ratio = baseline / row["single_ms"]["median"].as_f64().unwrap();
            assert!(
                (row["times_baseline"].as_f64().unwrap() - ratio).abs() < 1e-9,
                "{name}"
            );
            let transport = row["transport"][0].as_str().unwrap();
            assert!(transport.starts_with("host"), "{name}: {transport}");
        }
        assert_eq!(rows[0]["transport"][0], "host all-gather");
        assert_eq!(rows[1]["transport"][0], "host push");
    }
}

#[test]
fn one_rank_alone_is_a_job_too() {
    let line =
        "bench --device host --shape 9x8x7 --dtype f32 --iterations 2 --impl naiveRemoteRead";
    let Said { code, out, err } = job::say(line);
    assert_eq!(code, Some(0), "{err}");
    has(&out, &["9x8x7, f32, 1 rank\n", "nothing to transfer"]);
    assert!(!out.contains("empty call"), "{out}");
}

#[test]
fn the_gemm_suite_compares_providers() {
    let line = "bench --device host --suite gemm --shape 32x24x16 --shape 5x6x7 --iterations 2";
    let table = job::run_line(2, line).succeeded();
    let rows = ["\ncublasLt ", "\ncutlass ", "\nsm90 ", "\n32x24x16 bf16 "];
    has(&table, &rows);
    has(&table, &["geometric mean over 2 bf16 problems"]);
}

#[test]
fn the_list_names_every_implementation() {
    let list = job::say("bench --list");
    assert_eq!(list.code, Some(0));
    let algorithms = ROWS.map(|name| name.split(':').next().unwrap());
    has(&list.out, &algorithms);
    has(&list.out, &["\n  hierarchicalColumnParallelLinear NCCL "]);
}

#[test]
fn wrong_arguments_are_refused_with_what_there_is() {
    for (line, part) in [
        ("--impl fastest", "threadloadGatherThenCutlass"),
        (
            "--suite cooking",
            "no suite `cooking`; known are fused-matmul, recipes",
        ),
        (
            "--suite row-parallel --impl ringGet",
            "computes all-gather-matmul",
        ),
        (
            "--suite recipes --impl pushChunks:chunk=4",
            "it takes chunks=",
        ),
        ("--shape 12x13", "MxNxK"),
        ("--inject stall", "`stall` is none of stall:RANK"),
        ("--inject stall:", "`stall:` is none of stall:RANK"),
        ("--inject freeze:1", "`freeze:1` is none of stall:RANK"),
        ("--inject kill:-1", "`kill:-1` is none of stall:RANK"),
        ("--inject slow:1", "`slow:1` is none of stall:RANK"),
        ("--inject slow9-8:1", "`slow9-8:1` is none of stall:RANK"),
        ("--dtype f8", "bf16"),
        ("--iterations 0", "1..=100000"),
        ("--json no/such/report.json", "no folder no/such"),
        ("--markdown .", "--markdown .: it is a folder"),
        ("--report /proc/report.html", "no file can be made in /proc"),
    ] {
        // With `--list` no rank is needed: so a launcher has options checked once.
        for more in ["", " --list"] {
            let Said { code, out, err } = job::say(&format!("bench {line}{more}"));
            assert_eq!((code, out.as_str()), (Some(2), ""), "{line}{more}: {err}");
            has(&err, &[part]);
        }
    }
}

#[test]
fn files_that_cannot_be_written_cost_neither_the_table_nor_the_baseline_nor_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let line = "bench --device host --suite gemm --shape 8x8x8 --iterations 1 --save-baseline kept";
    let Said { code, out, err } = job::say(&format!(
        "{line} --baselines {} --json /dev/full --markdown {} --report /dev/full",
        folder.path().display(),
        file("report.md").display()
    ));
    assert_eq!(code, Some(1), "{err}");
    assert!(out.contains("cublasLt"), "{out}");
    // As a warning after the problem, and as what both options ended with.
    assert_eq!(err.matches("/dev/full: ").count(), 3, "{err}");
    assert!(file("report.md").is_file() && file("kept/gemm.json").is_file());
}

#[test]
fn a_machine_without_gpus_says_so() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return;
    }
    let Said { code, err, .. } = job::say("bench --device cuda");
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("CUDA is not available") && !err.contains("panicked"),
        "{err}"
    );
}

#[test]
fn a_part_of_a_launchers_environment_is_refused_with_what_is_missing() {
    for (variables, launcher, missing) in [
        ("RANK", "torchrun", "WORLD_SIZE, LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "Open MPI", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "MPICH", "PMI_SIZE"),
        ("SLURM_STEP_ID SLURM_PROCID", "SLURM", "SLURM_NTASKS"),
    ] {
        let mut command = job::warpweave();
        command.args(job::args("bench --device host --shape 8x8x8"));
        command.envs(variables.split(' ').map(|name| (name, "0")));
        let Said { code, out, err } = job::said(&mut command);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        has(&err, &[launcher, missing]);
    }
}
