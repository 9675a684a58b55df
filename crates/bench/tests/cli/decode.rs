//! The suite `decode` on the host backend, by real processes.

use crate::job::{self, Said, has};

#[test]
fn calls_between_layers_are_measured_and_right() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let bench = "bench --device host --suite decode --iterations 2 --dtype f16 --sizes 1000,8K";
    let line = format!("{bench} --json {}", file.display());
    job::run_line(2, &line).succeeded();
    let report = job::read_json(&file);
    let results = report["results"].as_array().unwrap();
    // What is computed, at two sizes.
    assert_eq!(results.len(), 3 * 2);
    for result in results {
        for row in result["rows"].as_array().unwrap() {
            let name = format!("{}: {}", result["operation"], row["implementation"]);
            if row["kind"] == "nccl" {
                assert_eq!(row["status"], "not-run", "{name}");
                continue;
            }
            assert_eq!(row["status"], "ok", "{name}: {}", row["reason"]);
            assert_eq!(row["verification"]["wrong"], 0, "{name}");
            let compared = row["verification"]["elements"].as_u64().unwrap();
            assert_eq!(compared > 0, row["implementation"] != "gemm", "{name}");
            assert!(
                row["graph_single_ms"]["median"].as_f64().unwrap() > 0.0,
                "{name}"
            );
        }
    }
    for (line, part) in [
        ("--impl push", "sentinel"),
        ("--op all-gather", "--op does not apply"),
        ("--costs costs.tsv", "--costs does not apply"),
        ("--shape 1x2x3", "--shape does not apply"),
    ] {
        let Said { code, err, .. } = job::say(&format!("bench --suite decode {line} --list"));
        assert_eq!(code, Some(2), "{line}: {err}");
        has(&err, &[part]);
    }
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn gpus_measure_and_verify_calls_between_layers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let line = "bench --device cuda --suite decode --sizes 8K,64K,4M --iterations 8";
    job::run_line(job::gpus(), &format!("{line} --json {}", file.display())).succeeded();
    let report = job::read_json(&file);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 3 * 3);
    for result in results {
        for row in result["rows"].as_array().unwrap() {
            let name = format!("{}: {}", result["operation"], row["implementation"]);
            let must_run = ["nccl", "ours", "ours-norm", "gemm"];
            if must_run.contains(&row["implementation"].as_str().unwrap()) {
                assert_eq!(row["status"], "ok", "{name}: {}", row["reason"]);
                assert!(row["graph_ms"]["median"].as_f64().is_some(), "{name}");
            }
        }
    }
    // Packets take 8 KiB with the norm in the same launch.
    let rows = results[3]["rows"].as_array().unwrap();
    let packets = rows.iter().find(|row| row["implementation"] == "packets");
    assert_eq!(packets.unwrap()["status"], "ok", "{rows:?}");
}
