//! Every suite of plans on the host backend, by real processes: all of it runs and is right, and what is
//! wrong is found.

use crate::job::{self, Outcome, Said, has};

use serde_json::Value;

const SUITES: [&str; 12] = [
    "fused-matmul",
    "recipes",
    "pipeline-32k",
    "row-parallel",
    "row-parallel-norm",
    "column-parallel",
    "layers",
    "matmul-reduce-scatter",
    "matmul-all-reduce",
    "overlap-allgather",
    "gemm",
    "quick",
];

/// The rows that a suite of many is represented by: of each algorithm one, and one with every parameter
/// chosen otherwise. Of a suite whose rows others have, too, a few.
fn representatives(suite: &str) -> &'static str {
    match suite {
        "row-parallel" => {
            " --impl rowParallelLinear:chunks=1:streams=1,rowParallelLinear,\
             rowParallelLinear:chunks=8:streams=4:reduce=symmetric,rowParallelLinearPipeline,\
             fusedRowParallelLinear"
        }
        "pipeline-32k" => " --impl baselineNcclAllgatherMatmul,ringPut",
        "quick" => " --impl cublasLt,naiveRemoteRead,fusedColumnParallelLinear,fusedAllReduce",
        _ => "",
    }
}

fn measured(world: usize, suite: &str, more: &str) -> (Outcome, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let bench = format!("bench --device host --suite {suite} --iterations 2");
    let rows = representatives(suite);
    let outcome = job::run_line(
        world,
        &format!("{bench} --json {}{rows} {more}", file.display()),
    );
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|_| panic!("{suite}: {}", outcome.errors(0)));
    (outcome, serde_json::from_str(&text).unwrap())
}

fn rows(report: &Value) -> impl Iterator<Item = (&Value, &Value)> {
    let results = report["results"].as_array().unwrap().iter();
    results.flat_map(|result| {
        let rows = result["rows"].as_array().unwrap().iter();
        rows.map(move |row| (result, row))
    })
}

#[test]
fn every_suite_is_measured_and_right() {
    for suite in SUITES {
        let (outcome, report) = measured(4, suite, "--shape 64x48x40");
        outcome.succeeded();
        assert!(!report["reproduces"].as_str().unwrap().is_empty());
        for (result, row) in rows(&report) {
            let name = format!("{suite}: {}", row["implementation"]);
            assert_eq!(row["status"], "ok", "{name}: {}", row["reason"]);
            let is_part = ["gemmAlone", "allGatherAlone"].map(Value::from);
            let is_part = is_part.contains(&row["implementation"]);
            assert_eq!(row["part"], is_part, "{name}");
            let verified = &row["verification"];
            assert_eq!(verified["wrong"], 0, "{name}");
            // Three sets of integers and two of reals, as calls and as graphs, before and after the timing.
            assert_eq!(verified["calls"], 2 * 2 * 5, "{name}");
            let (exact, all) = (&verified["exact_elements"], &verified["elements"]);
            let ratio = exact.as_f64().unwrap() / all.as_f64().unwrap();
            assert!((ratio - 0.6).abs() < 1e-9, "{name}");
            let group = &result["groups"][row["group"].as_u64().unwrap() as usize];
            let ms = row["single_ms"]["median"].as_f64().unwrap();
            let over = |time: &Value| time.as_f64().map(|time| time / ms);
            let near = |ratio: &Value, wanted: Option<f64>| match (ratio.as_f64(), wanted) {
                (Some(ratio), Some(wanted)) => (ratio - wanted).abs() < 1e-9,
                (ratio, wanted) => ratio.is_none() && wanted.is_none(),
            };
            assert!(
                near(
                    &row["times_baseline"],
                    over(&group["baseline_ms"]["median"])
                ),
                "{name}"
            );
            assert!(near(&row["efficiency"], over(&group["limit_ms"])), "{name}");
            assert_eq!(result["operation"].is_null(), group["limit_ms"].is_null());
        }
    }
}

/// Two ragged blocks of scales along each side.
#[test]
fn gemms_of_e4m3_are_right_by_all_scales() {
    for scales in ["tensor", "row", "block"] {
        let line = format!("--dtype e4m3 --scales {scales} --shape 33x136x208");
        let (outcome, report) = measured(2, "gemm", &line);
        outcome.succeeded();
        assert_eq!(rows(&report).count(), 3);
        for (result, row) in rows(&report) {
            assert_eq!(result["dtype"], format!("e4m3 scales by {scales}"));
            assert_eq!(row["status"], "ok", "{row}");
            assert_eq!(row["verification"]["wrong"], 0, "{row}");
            assert_eq!(row["verification"]["calls"], 2 * 2 * 5, "{row}");
        }
    }
}

/// Measures rows of a suite in e4m3, by both kinds of scales. `refused` takes no e4m3, and says so.
fn rows_of_e4m3_are_right(ranks: usize, suite: &str, rows_of: &str, refused: &str) {
    for scales in ["tensor", "row"] {
        let line =
            format!("--dtype e4m3 --scales {scales} --shape 37x24x48 --impl {rows_of},{refused}");
        let (outcome, report) = measured(ranks, suite, &line);
        outcome.succeeded();
        assert_eq!(rows(&report).count(), rows_of.split(',').count() + 1);
        for (_, row) in rows(&report) {
            if row["implementation"] == refused {
                let reason = row["reason"].as_str().unwrap();
                assert!(reason.contains("does not take operands of e4m3"), "{row}");
                continue;
            }
            assert_eq!(row["status"], "ok", "{row}");
            assert_eq!(row["verification"]["wrong"], 0, "{row}");
        }
    }
}

/// By what gathers rows with their scales.
#[test]
fn gathered_rows_of_e4m3_are_right() {
    let rows_of = "baselineNcclAllgatherMatmul,ringGet,ringPut/bound,pushChunks:chunks=2/local,\
                   fusedAllGather,fusedAllGather:protocol=eager/local,fusedAllGather:pulled=3/bound";
    rows_of_e4m3_are_right(3, "recipes", rows_of, "threadloadGatherThenCutlass");
}

/// The bias has the type of the result.
#[test]
fn column_parallel_layers_of_e4m3_are_right() {
    let rows_of = "fusedColumnParallelLinear,fusedColumnParallelLinear:protocol=eager/local,\
                   hierarchicalColumnParallelLinear,columnParallelLinear,\
                   columnParallelLinear:sharding=cyclic,columnParallelLinear:gather=push/local";
    let refused = "columnParallelLinear:gemms=batched";
    rows_of_e4m3_are_right(2, "column-parallel", rows_of, refused);
}

/// Each rank has scales of its own.
#[test]
fn reductions_of_e4m3_are_right() {
    for (suite, rows_of) in [
        (
            "matmul-reduce-scatter",
            "matmulThenReduceScatter,reduceScatterPipeline,reduceScatterRing,fusedReduceScatter/bound,\
             fusedReduceScatter/local",
        ),
        (
            "matmul-all-reduce",
            "matmulThenAllReduce,allReducePipeline,fusedAllReduce,fusedAllReduce:shots=1",
        ),
        (
            "row-parallel",
            "rowParallelLinear,rowParallelLinearPipeline,fusedRowParallelLinear",
        ),
        (
            "row-parallel-norm",
            "rowParallelLinearNorm,rowParallelLinearNorm:reduce=nccl/local",
        ),
    ] {
        for scales in ["tensor", "row"] {
            let line = format!("--dtype e4m3 --scales {scales} --shape 37x24x96 --impl {rows_of}");
            let (outcome, report) = measured(3, suite, &line);
            outcome.succeeded();
            for (_, row) in rows(&report) {
                assert_eq!(row["status"], "ok", "{row}");
                assert_eq!(row["verification"]["wrong"], 0, "{row}");
            }
        }
    }
}

#[test]
fn layers_are_of_their_operation_and_say_what_calls_take_the_host() {
    let rows_of = "fusedColumnParallelLinear/bound,fusedColumnParallelLinear,\
                   rowParallelLinear:chunks=1:streams=1/bound,\
                   rowParallelLinear:chunks=1:streams=1/local/invariant";
    let (outcome, report) = measured(2, "layers", &format!("--impl {rows_of}"));
    outcome.succeeded();
    // Four layers of a model at three M, each of one operation.
    assert_eq!(report["results"].as_array().unwrap().len(), 12);
    for (result, row) in rows(&report) {
        let name = row["implementation"].as_str().unwrap();
        let of_column = result["operation"] == "column-parallel-linear";
        assert_eq!(name.starts_with("fusedColumn"), of_column, "{name}");
        assert_eq!(row["status"], "ok", "{name}: {}", row["reason"]);
        assert!(row["enqueue_us"]["median"].as_f64().unwrap() > 0.0, "{row}");
        // There is no smaller M than one, and a bound plan has one only.
        let changes = !name.ends_with("/bound") && result["shape"]["m"] != 1;
        assert_eq!(row["enqueue_changing_us"].is_object(), changes, "{row}");
    }
    let notes = report["notes"].to_string();
    has(
        &notes,
        &["fusedColumnParallelLinear over fusedColumnParallelLinear/bound, "],
    );
    let other = job::say("bench --device host --suite layers --impl rowParallelLinear/lent");
    assert_eq!(other.code, Some(2), "{}", other.err);
    has(&other.err, &["[/local][/invariant], or /bound"]);
}

#[test]
fn a_wrong_element_is_found_in_every_row_of_every_suite() {
    for suite in SUITES {
        let (outcome, report) = measured(2, suite, "--shape 16x8x12 --inject corrupt:1");
        for rank in [0, 1] {
            outcome.ended(rank, Some(1));
        }
        for (_, row) in rows(&report) {
            assert_eq!(row["status"], "wrong", "{suite}: {row}");
            // One element of rank 1 of each output in each of twenty calls.
            let wrong = row["verification"]["wrong"].as_u64().unwrap();
            assert!(wrong == 20 || wrong == 40, "{suite}: {row}");
        }
        for result in report["results"].as_array().unwrap() {
            assert!(
                result["groups"][0]["baseline_ms"].is_null(),
                "{suite}: {result}"
            );
        }
    }
}

#[test]
fn the_host_has_problems_of_its_own_that_do_not_divide() {
    let (outcome, report) = measured(3, "recipes", "--impl ringGet,pushChunks:chunks=5");
    outcome.succeeded();
    let problems = report["results"].as_array().unwrap();
    assert_eq!(problems.len(), 2);
    assert_eq!(problems[1]["shape"]["m"], 131);
    let names: Vec<_> = rows(&report)
        .map(|(_, row)| &row["implementation"])
        .collect();
    assert_eq!(names[..2], ["ringGet", "pushChunks:chunks=5"]);
    for (_, row) in rows(&report) {
        assert_eq!(row["status"], "ok", "{row}");
        assert!(row["times_baseline"].is_null(), "no baseline was asked for");
        assert!(row["efficiency"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn figures_of_peers_stand_beside_ours() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("torch.json");
    let spread = r#"{"median": 0.5, "p10": 0.4, "p90": 0.6, "samples": 15}"#;
    let part = spread.replace('}', ", \"part\": true}");
    let row = |world: usize| {
        format!(
            r#"{{"kind": "all-gather-matmul", "world": {world}, "shape": "16x8x12", "dtype": "float16",
                "ms": {{"torch-fused": {spread}, "torch-matmul": {part}}}}}"#
        )
    };
    let text = format!(
        r#"{{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [{}, {}]}}"#,
        row(2),
        row(8)
    );
    std::fs::write(&file, text).unwrap();
    let line = "--shape 16x8x12 --dtype f16 --impl baselineNcclAllgatherMatmul --peers";
    let line = format!("{line} {}", file.display());
    let (outcome, report) = measured(2, "recipes", &line);
    let table = outcome.succeeded();
    let rows: Vec<_> = rows(&report).map(|(_, row)| row).collect();
    assert_eq!(rows.len(), 3, "the rows of two ranks alone: {report}");
    let parts: Vec<_> = rows.iter().map(|row| &row["part"]).collect();
    assert_eq!(parts, [false, false, true], "{report}");
    assert_eq!(
        (&rows[0]["kind"], &rows[1]["kind"]),
        (&"ours".into(), &"peer".into())
    );
    assert_eq!(rows[1]["single_ms"]["median"], 0.5);
    let ratio = rows[0]["single_ms"]["median"].as_f64().unwrap() / 0.5;
    assert!((rows[1]["times_baseline"].as_f64().unwrap() - ratio).abs() < 1e-9);
    has(&table, &["torch-fused", "peer"]);
    has(&table, &["Rows torch-*: PyTorch 2.11.0, NCCL 2.28.9"]);
}

#[test]
fn more_rows_than_a_group_takes_are_compared_with_the_baseline_of_their_own_group() {
    let pushes: Vec<_> = (2..20).map(|n| format!("pushChunks:chunks={n}")).collect();
    let names = format!("baselineNcclAllgatherMatmul,{}", pushes.join(","));
    let line = format!("--shape 16x8x12 --impl {names}");
    let (outcome, report) = measured(2, "recipes", &line);
    let table = outcome.succeeded();
    let result = &report["results"][0];
    let groups = result["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    assert_ne!(groups[0]["gemm_ms"], groups[1]["gemm_ms"], "measured anew");
    let rows: Vec<_> = rows(&report).map(|(_, row)| row).collect();
    assert_eq!(rows.len(), 19);
    for (place, row) in rows.iter().enumerate() {
        assert_eq!(row["status"], "ok", "{row}");
        assert_eq!(row["verification"]["calls"], 20, "{row}");
        let group = &groups[row["group"].as_u64().unwrap() as usize];
        // The baseline and sixteen more, then the others.
        assert_eq!(row["group"], usize::from(place > 16), "{row}");
        let baseline = group["baseline_ms"]["median"].as_f64().unwrap();
        let ratio = baseline / row["single_ms"]["median"].as_f64().unwrap();
        assert!((row["times_baseline"].as_f64().unwrap() - ratio).abs() < 1e-9);
    }
    assert!(table.contains("measured in 2 groups"), "{table}");
}

#[test]
fn peers_are_asked_for_the_problems_of_the_run() {
    let asked = |line: &str| job::say(&format!("bench --peer-problems 2 {line}"));
    let told = asked("--suite recipes --shape 16x8x12 --shape 8x8x8 --dtype f16");
    assert_eq!(told.code, Some(0), "{}", told.err);
    let lines = "all-gather-matmul 16x8x12 float16\nall-gather-matmul 8x8x8 float16\n";
    assert_eq!(told.out, lines);
    let told = asked("--suite recipes --shape 16x8x16 --dtype e4m3").out;
    assert_eq!(told, "all-gather-matmul 16x8x16 float8_e4m3fn\n");
    let told = asked("--suite recipes --dtype e4m3 --scales tensor");
    assert_eq!(told.code, Some(2));
    has(
        &told.err,
        &["--peers has figures of scales by row, none by tensor"],
    );
    let told = asked("--suite row-parallel").out;
    assert_eq!(told, "row-parallel-linear 8192x8192x32768 bfloat16\n");
    let told = asked("--suite collectives --sizes 1M,4K --dtype f32").out;
    assert_eq!(told, "collectives 4K float32\ncollectives 1M float32\n");
    let Said { code, out, err } = asked("--suite gemm");
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    has(&err, &["--peers does not apply"]);
}
