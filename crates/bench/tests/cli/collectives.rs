//! The suite `collectives`, by real processes.

use crate::job::{self, Said, has};

use std::time::Duration;

use warpweave_comm::collective::{Costs, Operation, Variant};

const BENCH: &str = "bench --device host --suite collectives";

fn run(world: usize, more: &str) -> job::Outcome {
    job::run_line(world, &format!("{BENCH} {more}"))
}

#[test]
fn four_ranks_measure_and_verify_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, document) = (path("a.json"), path("a.md"));
    let (plot, costs) = (path("a.svg"), path("a.tsv"));
    let peers = path("torch.json");
    let figures = r#"{"torch": "2.0", "rows": [{"kind": "collectives", "world": 4, "shape": "4 KiB",
        "dtype": "bfloat16", "ms": {"all_gather": 0.5, "two_shot_all_reduce": 0.25}}]}"#;
    std::fs::write(&peers, figures).unwrap();
    let files = format!("--json {json} --markdown {document} --plot {plot} --costs {costs}");
    let line = format!("--sizes 1K,4K --iterations 2 {files} --peers {peers}");
    let table = run(4, &line).succeeded();
    let report = job::read_json(json);
    assert_eq!(report["schema"], "warpweave-bench-collectives/1");
    assert!(report["links"]["bandwidth_gb_s"].as_f64().unwrap() > 0.0);
    let results = report["results"].as_array().unwrap();
    let places: Vec<_> = results
        .iter()
        .map(|result| {
            (
                result["operation"].as_str().unwrap(),
                result["size"].as_u64().unwrap(),
            )
        })
        .collect();
    let operations = [
        "all-gather",
        "reduce-scatter",
        "all-reduce",
        "broadcast",
        "all-to-all",
    ];
    let wanted: Vec<_> = operations
        .into_iter()
        .flat_map(|operation| [(operation, 1024), (operation, 4096)])
        .collect();
    assert_eq!(places, wanted);
    for result in results {
        let operation = &result["operation"];
        let rows = result["rows"].as_array().unwrap();
        let ran: Vec<_> = rows
            .iter()
            .filter(|row| row["kind"] == "ours" && row["status"] == "ok")
            .collect();
        assert!(ran.len() >= 2, "{operation}: {rows:?}");
        for row in ran {
            let name = &row["implementation"];
            for time in [
                "single_ms",
                "graph_single_ms",
                "back_to_back_ms",
                "graph_ms",
            ] {
                let median = row[time]["median"].as_f64();
                assert!(
                    median.is_some_and(|ms| ms > 0.0),
                    "{operation} {name} {time}: {row}"
                );
            }
            assert!(
                row["efficiency"].as_f64().unwrap() > 0.0,
                "{operation} {name}"
            );
            // Three sets as calls and as replays, before and after the timing, on four ranks.
            let verified = &row["verification"];
            assert_eq!(verified["calls"], 12, "{operation} {name}");
            let elements = 12 * 4 * result["output_bytes"].as_u64().unwrap() / 2;
            assert_eq!(verified["exact_elements"], elements, "{operation} {name}");
            assert_eq!(verified["wrong"], 0, "{operation} {name}");
        }
        let nccl = &rows[0];
        assert_eq!(
            (&nccl["implementation"], &nccl["status"]),
            (&"nccl".into(), &"not-run".into())
        );
        assert!(
            nccl["reason"].as_str().unwrap().contains("no GPUs"),
            "{nccl}"
        );
        let selected = result["selected"].as_str().unwrap();
        let chosen = rows.iter().find(|row| row["implementation"] == selected);
        assert_eq!(chosen.unwrap()["status"], "ok", "{operation}: {selected}");
        let best = result["best"].as_str().unwrap();
        assert!(
            rows.iter().any(|row| row["implementation"] == best),
            "{best}"
        );
    }
    let peer = results[0]["rows"].as_array().unwrap();
    assert!(
        peer.iter().all(|row| row["kind"] != "peer"),
        "the peers' figure is of 4K"
    );
    let peer = results[1]["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&peer["implementation"], &peer["kind"]),
        (&"torch-nccl".into(), &"peer".into())
    );
    assert_eq!(peer["single_ms"]["median"], 0.5);

    for text in [&table, &std::fs::read_to_string(document).unwrap()] {
        let parts = ["all-gather, bf16, 4 ranks", "nccl was not run at 1K, 4K: "];
        has(text, &parts);
        has(text, &["0 wrong", "by PyTorch 2.0"]);
    }
    let costs: Costs = std::fs::read_to_string(costs).unwrap().parse().unwrap();
    let ms = results[0]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["implementation"] == "packets");
    let ms = ms.unwrap()["single_ms"]["median"].as_f64().unwrap();
    let us = costs.predict(Operation::AllGather, Variant::Packets, 4, 1024);
    assert!((us.unwrap() - ms * 1e3).abs() < 0.1, "{us:?} {ms}");
    let drawing = std::fs::read_to_string(plot).unwrap();
    has(
        &drawing,
        &["<svg ", ">packets<", ">torch-two-shot<", ">limit<"],
    );
    has(&drawing, &["all-to-all, bf16, 4 ranks"]);
}

#[test]
fn sizes_that_ranks_cannot_share_and_other_types_are_right_too() {
    for (world, dtype, size) in [(3, "f16", "1000"), (2, "f32", "4"), (1, "bf16", "64")] {
        let line = format!("--sizes {size} --dtype {dtype} --iterations 1");
        let table = run(world, &line).succeeded();
        assert!(
            table.contains(" 0 wrong") && !table.contains("WRONG at"),
            "{table}"
        );
    }
}

#[test]
fn a_choice_has_its_row() {
    let line = "--sizes 1K --iterations 1 --op all-reduce --impl select";
    let table = run(2, line).succeeded();
    has(
        &table,
        &["\ntwo-shot ", "\nselect ", "\nselect / best  1.000"],
    );
}

#[test]
fn a_wrong_element_is_a_wrong_row() {
    let line = "--sizes 256 --iterations 1 --op all-gather --impl packets --inject corrupt:1";
    let outcome = run(2, line);
    for rank in [0, 1] {
        outcome.ended(rank, Some(1));
    }
    let wrong = "packets was WRONG at 256: 12 of 6144 elements; rank 1, call 0";
    has(&outcome.report(), &["WRONG", wrong, "element 0 is NaN"]);
}

/// Every rank but 1 names rank 1, whichever way it was waiting for it.
fn a_rank_that_dies_is_named(device: &str, world: usize, implementations: &[&str]) {
    // The ranks take differently long to bring GPUs up.
    let patience = job::Patience {
        device: Duration::from_secs(2),
        exchange: Duration::from_secs(if device == "cuda" { 10 } else { 4 }),
    };
    for implementation in implementations {
        let line = format!(
            "bench --device {device} --suite collectives --sizes 64K --op all-reduce \
             --impl {implementation} --inject kill:1"
        );
        let ranks = job::all(world, &job::args(&line));
        let outcome = job::run(&ranks, patience, Duration::from_secs(240));
        for rank in (0..world).filter(|&rank| rank != 1) {
            has(&outcome.ended(rank, Some(76)), &["rank 1"]);
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_the_others() {
    a_rank_that_dies_is_named("host", 3, &["two-shot", "packets"]);
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn a_rank_that_dies_is_named_by_the_others_on_gpus() {
    a_rank_that_dies_is_named("cuda", job::gpus(), &["nccl", "two-shot", "packets"]);
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn gpus_measure_and_verify_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let line = "bench --device cuda --suite collectives --sizes 4K,1M,1000000 --iterations 8";
    job::run_line(job::gpus(), &format!("{line} --json {}", file.display())).succeeded();
    let report = job::read_json(file);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 5 * 3);
    for result in results {
        let rows = result["rows"].as_array().unwrap();
        assert_eq!(
            rows[0]["status"], "ok",
            "{}: {}",
            result["operation"], rows[0]["reason"]
        );
        let ours = rows
            .iter()
            .filter(|row| row["kind"] == "ours" && row["status"] == "ok");
        for row in ours.clone() {
            let ratio = row["times_nccl"]["single"].as_f64();
            assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{row}");
            assert!(row["graph_ms"]["median"].as_f64().is_some(), "{row}");
        }
        assert!(ours.count() >= 2, "{result}");
    }
}

#[test]
fn ranks_with_different_sizes_tell_both() {
    let of = |sizes: &str| job::all(1, &job::args(&format!("{BENCH} --sizes {sizes}")));
    let ranks = [of("4K"), of("8K")].concat();
    let outcome = job::run(&ranks, job::PATIENT, job::PATIENT * 8);
    for (rank, values) in [
        (0, "4K on rank 0, 8K on rank 1"),
        (1, "8K on rank 1, 4K on rank 0"),
    ] {
        let wanted = format!("the list of sizes differs between ranks: {values}");
        has(&outcome.errors(rank), &[&wanted]);
    }
}

#[test]
fn wrong_options_are_refused_with_what_there_is() {
    for (line, part) in [
        (
            "collectives --op all-scatter",
            "no operation `all-scatter` to measure; known are all-gather, reduce-scatter, all-reduce, \
             broadcast, all-to-all",
        ),
        ("collectives --sizes 4X", "4K"),
        ("collectives --impl fastest", "sentinel"),
        ("collectives --shape 1x2x3", "--shape does not apply"),
        ("collectives --peers none.json", "--peers none.json"),
        ("collectives --plot no/such.svg", "--plot no/such.svg"),
        (
            "gemm --sizes 4K",
            "--sizes does not apply to the suite gemm",
        ),
        (
            "gemm --scales row",
            "--scales does not apply to the suite gemm",
        ),
        (
            "gemm --dtype e4m3 --scales col",
            "none of tensor, row and block",
        ),
        (
            "overlap-allgather --dtype e4m3",
            "takes no operands of e4m3 with scales by row",
        ),
        (
            "overlap-allgather --dtype e4m3 --scales block",
            "takes no operands of e4m3 with scales by block",
        ),
        ("gemm --peers x", "--peers does not apply to the suite gemm"),
    ] {
        let Said { code, err, .. } = job::say(&format!("bench --suite {line} --list"));
        assert_eq!(code, Some(2), "{line}: {err}");
        has(&err, &[part]);
    }
}
