//! The suite `collectives`, by real processes.

mod refusals;

use crate::job;

use std::time::Duration;

use serde_json::Value;
use warpweave_comm::collective::{Costs, Operation, Variant};
use warpweave_symm_mem::Cuda;

const PATIENT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(240);

const BENCH: [&str; 5] = ["bench", "--device", "host", "--suite", "collectives"];

fn run(world: usize, more: &[&str]) -> job::Outcome {
    job::run(&job::all(world, &[&BENCH, more].concat()), PATIENT, LIMIT)
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
    let args = [
        "--sizes",
        "1K,4K",
        "--iterations",
        "2",
        "--json",
        &json,
        "--markdown",
        &document,
        "--plot",
        &plot,
        "--costs",
        &costs,
        "--peers",
        &peers,
    ];
    let outcome = run(4, &args);
    for (rank, output) in outcome.ranks.iter().enumerate() {
        let errors = outcome.errors(rank);
        assert!(output.status.success(), "rank {rank}: {errors}");
        assert_eq!(output.stdout.is_empty(), rank != 0, "only rank 0 reports");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
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

    let (table, document) = (outcome.report(), std::fs::read_to_string(document).unwrap());
    for text in [&table, &document] {
        for part in [
            "all-gather, bf16, 4 ranks",
            "nccl was not run at 1K, 4K: ",
            "0 wrong",
            "by PyTorch 2.0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
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
    for part in [
        "<svg ",
        ">packets<",
        ">torch-two-shot<",
        ">limit<",
        "all-to-all, bf16, 4 ranks",
    ] {
        assert!(drawing.contains(part), "{part}");
    }
}

#[test]
fn sizes_that_ranks_cannot_share_and_other_types_are_right_too() {
    for (world, dtype, size) in [(3, "f16", "1000"), (2, "f32", "4"), (1, "bf16", "64")] {
        let args = ["--sizes", size, "--dtype", dtype, "--iterations", "1"];
        let outcome = run(world, &args);
        for rank in 0..world {
            let errors = outcome.errors(rank);
            assert!(
                outcome.ranks[rank].status.success(),
                "{world} {dtype} {size}, rank {rank}: {errors}"
            );
        }
        let table = outcome.report();
        assert!(
            table.contains(" 0 wrong") && !table.contains("WRONG at"),
            "{table}"
        );
    }
}

#[test]
fn a_choice_has_its_row() {
    let outcome = run(
        2,
        &job::args("--sizes 1K --iterations 1 --op all-reduce --impl select"),
    );
    let table = outcome.report();
    assert!(outcome.ranks[0].status.success(), "{}", outcome.errors(0));
    for part in ["\ntwo-shot ", "\nselect ", "\nselect / best  1.000"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_wrong_element_is_a_wrong_row() {
    let args = job::args("--sizes 256 --iterations 1 --op all-gather --impl packets");
    let outcome = run(2, &[&args[..], &["--inject", "corrupt:1"]].concat());
    for rank in &outcome.ranks {
        assert_eq!(rank.status.code(), Some(1));
    }
    let table = outcome.report();
    for part in [
        "WRONG",
        "packets was WRONG at 256: 12 of 6144 elements; rank 1, call 0",
        "element 0 is NaN",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

/// Every rank but 1 names rank 1, whichever way it was waiting for it.
fn a_rank_that_dies_is_named(device: &str, world: usize, implementations: &[&str]) {
    // The ranks take differently long to bring GPUs up.
    let patience = job::Patience {
        device: Duration::from_secs(2),
        exchange: Duration::from_secs(if device == "cuda" { 10 } else { 4 }),
    };
    for implementation in implementations {
        let args = [
            "bench",
            "--device",
            device,
            "--suite",
            "collectives",
            "--sizes",
            "64K",
        ];
        let more = [
            "--op",
            "all-reduce",
            "--impl",
            implementation,
            "--inject",
            "kill:1",
        ];
        let outcome = job::run(
            &job::all(world, &[&args[..], &more].concat()),
            patience,
            LIMIT,
        );
        for rank in (0..world).filter(|&rank| rank != 1) {
            let error = outcome.errors(rank);
            let status = outcome.ranks[rank].status.code();
            assert_eq!(status, Some(76), "{implementation}, rank {rank}: {error}");
            assert!(
                error.contains("rank 1"),
                "{implementation}, rank {rank}: {error}"
            );
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_the_others() {
    a_rank_that_dies_is_named("host", 3, &["two-shot", "packets"]);
}

fn gpus() -> usize {
    let gpus = Cuda::device_count().expect("a driver and GPUs");
    assert!(
        gpus >= 2,
        "this test needs two GPUs, and this process sees {gpus}"
    );
    gpus.min(4)
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn a_rank_that_dies_is_named_by_the_others_on_gpus() {
    a_rank_that_dies_is_named("cuda", gpus(), &["nccl", "two-shot", "packets"]);
}

#[test]
#[ignore = "needs two GPUs and NCCL"]
fn gpus_measure_and_verify_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let args = job::args("bench --device cuda --suite collectives --sizes 4K,1M,1000000");
    let more = ["--iterations", "8", "--json", file.to_str().unwrap()];
    let outcome = job::run(
        &job::all(gpus(), &[&args[..], &more].concat()),
        PATIENT,
        LIMIT,
    );
    assert!(
        outcome.ranks.iter().all(|rank| rank.status.success()),
        "{}",
        outcome.errors(0)
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
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
