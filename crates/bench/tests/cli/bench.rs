//! Whole runs on the host backend, by four real processes.

use crate::job;

use std::time::Duration;

use serde_json::Value;

const PATIENT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(240);

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
    let json = file.to_str().unwrap();
    let document = folder.path().join("report.md");
    let args = job::args("bench --device host --shape 66x40x24 --shape 37x21x35");
    let args = [
        &args[..],
        &["--iterations", "4", "--dtype", "f16", "--json", json],
        &["--markdown", document.to_str().unwrap()],
    ]
    .concat();
    let outcome = job::run(&job::all(4, &args), PATIENT, LIMIT);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        assert!(
            output.status.success(),
            "rank {rank}: {}",
            outcome.errors(rank)
        );
        assert_eq!(output.stdout.is_empty(), rank != 0, "only rank 0 reports");
    }
    let table = outcome.report();
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
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
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
        for part in ["empty", "handshake", "gather", "product", "together"] {
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
    let args = job::args("bench --device host --shape 9x8x7 --dtype f32");
    let args = [
        &args[..],
        &["--iterations", "2", "--impl", "naiveRemoteRead"],
    ]
    .concat();
    let output = job::warpweave().args(args).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !table.contains("empty call")
            && table.contains("9x8x7, f32, 1 rank\n")
            && table.contains("nothing to transfer"),
        "{table}"
    );
}

#[test]
fn the_gemm_suite_compares_providers() {
    let args = job::args("bench --device host --suite gemm --shape 32x24x16");
    let args = [&args[..], &["--shape", "5x6x7", "--iterations", "2"]].concat();
    let outcome = job::run(&job::all(2, &args), PATIENT, LIMIT);
    assert!(
        outcome.ranks.iter().all(|rank| rank.status.success()),
        "{}",
        outcome.errors(0)
    );
    let table = outcome.report();
    for part in [
        "\ncublasLt ",
        "\ncutlass ",
        "\nsm90 ",
        "\n32x24x16 bf16 ",
        "geometric mean over 2 bf16 problems",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn the_list_names_every_implementation() {
    let output = job::warpweave().args(["bench", "--list"]).output().unwrap();
    let list = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    let algorithm = |name: &str| {
        name.split(':')
            .next()
            .is_some_and(|name| list.contains(name))
    };
    assert!(ROWS.iter().all(|name| algorithm(name)), "{list}");
}

#[test]
fn wrong_arguments_are_refused_with_what_there_is() {
    for (args, part) in [
        (
            &["bench", "--impl", "fastest"][..],
            "threadloadGatherThenCutlass",
        ),
        (&["bench", "--suite", "cooking"], "fused-matmul"),
        (&["bench", "--shape", "12x13"], "MxNxK"),
        (&["bench", "--dtype", "f8"], "bf16"),
        (&["bench", "--iterations", "0"], "1..=100000"),
        (
            &["bench", "--json", "no/such/report.json"],
            "no folder no/such",
        ),
        (
            &["bench", "--markdown", "."],
            "--markdown .: it is a folder",
        ),
    ] {
        // With `--list` no rank is needed: so a launcher has options checked once.
        for more in [&[][..], &["--list"]] {
            let output = job::warpweave().args(args).args(more).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{args:?} {more:?}: {error}");
            assert!(error.contains(part), "{args:?} {more:?}: {error}");
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn a_machine_without_gpus_says_so() {
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return;
    }
    let output = job::warpweave()
        .args(["bench", "--device", "cuda"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("CUDA is not available") && !error.contains("panicked"),
        "{error}"
    );
}

#[test]
fn a_part_of_a_launchers_environment_is_refused_with_what_is_missing() {
    for (variables, launcher, missing) in [
        (&["RANK"][..], "torchrun", "WORLD_SIZE, LOCAL_RANK"),
        (
            &["OMPI_COMM_WORLD_RANK"],
            "Open MPI",
            "OMPI_COMM_WORLD_SIZE",
        ),
        (&["PMI_RANK"], "MPICH", "PMI_SIZE"),
        (&["SLURM_STEP_ID", "SLURM_PROCID"], "SLURM", "SLURM_NTASKS"),
    ] {
        let mut command = job::warpweave();
        command.args(["bench", "--device", "host", "--shape", "8x8x8"]);
        for name in variables {
            command.env(name, "0");
        }
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains(launcher) && error.contains(missing) && output.stdout.is_empty(),
            "{error}"
        );
    }
}
