//! The suite `decode` on the host backend, by real processes.

use crate::job::{self, Said, has};

use serde_json::Value;

#[test]
fn calls_between_layers_are_measured_and_right() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let bench = "bench --device host --suite decode --iterations 2 --dtype f16 --sizes 1000,8K";
    let line = format!("{bench} --json {}", file.display());
    job::run_line(2, &line).succeeded();
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
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
        ("--impl push", "packets-two-shot"),
        ("--op all-gather", "--op says nothing"),
        ("--shape 1x2x3", "--shape says nothing"),
    ] {
        let Said { code, err, .. } = job::say(&format!("bench --suite decode {line} --list"));
        assert_eq!(code, Some(2), "{line}: {err}");
        has(&err, &[part]);
    }
}
