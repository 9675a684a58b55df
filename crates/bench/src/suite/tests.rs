use super::*;

fn texts(suite: &Suite, world: usize) -> Vec<String> {
    let problems = (suite.problems)(BackendKind::Cuda, world);
    let text = |(shape, dtype): &Sizes| format!("{shape} {dtype}");
    problems.iter().map(text).collect()
}

fn rows(suite: &Suite, names: &[&str]) -> Result<Vec<String>> {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let all = suite.cases(&names)?.into_iter();
    let all = all.flat_map(|case| case.implementations);
    Ok(all.map(|implementation| implementation.name).collect())
}

#[test]
fn without_shapes_each_problem_has_its_own_element_type() {
    assert_eq!(
        texts(&suites::FUSED_MATMUL, 4),
        [
            "1024x1024x1024 f16",
            "8192x3584x8192 bf16",
            "1028x1160x1032 f16"
        ]
    );
    let gemm = texts(&GEMM, 1);
    assert_eq!(
        gemm.iter().filter(|text| text.ends_with("bf16")).count(),
        10
    );
    assert_eq!(gemm[0], "4096x1792x4096 bf16");
    assert_eq!(gemm[9..], ["8192x8192x8192 bf16", "1024x1024x1024 f16"]);
    assert_eq!(texts(&suites::RECIPES, 4), gemm[..9]);
    assert_eq!(texts(&suites::ROW_PARALLEL, 2), ["8192x8192x32768 bf16"]);
    assert_eq!(texts(&suites::ROW_PARALLEL, 4), ["8192x8192x8192 bf16"]);
}

#[test]
fn names_choose_implementations_in_the_order_of_the_table() {
    let suite = &suites::FUSED_MATMUL;
    let all = rows(suite, &[]).unwrap();
    assert_eq!(all.len(), 9);
    assert_eq!(all[0], "baselineNcclAllgatherMatmul");
    assert_eq!(
        all[7..],
        ["fusedAllGather", "fusedAllGather:protocol=eager"]
    );
    let two = ["naiveRemoteRead", "baselineCudaAllgatherMatmul"];
    assert_eq!(rows(suite, &two).unwrap(), [two[1], two[0]]);
    let pipelines = ["pushChunks:chunks=3", "ringGet", "naiveRemoteRead"];
    assert_eq!(
        rows(suite, &pipelines).unwrap(),
        ["naiveRemoteRead", "ringGet", "pushChunks:chunks=3"]
    );
    let unknown = rows(&GEMM, &two).unwrap_err().to_string();
    assert!(
        unknown.contains("naiveRemoteRead") && unknown.contains("cutlass"),
        "{unknown}"
    );
}

#[test]
fn a_suite_has_rows_of_its_operations_alone_and_the_baseline_first() {
    for suite in ALL.into_iter().filter(|suite| !suite.is_of_collectives()) {
        let cases = suite.cases(&[]).unwrap();
        assert!(!cases.is_empty(), "{}", suite.name);
        for case in &cases {
            let known = case.operation.is_none_or(|o| suite.operations.contains(&o));
            assert!(known, "{}: {:?}", suite.name, case.operation);
            assert_eq!(case.implementations[0].name, case.baseline);
        }
    }
}

#[test]
fn the_pipelines_stand_beside_one_baseline() {
    let all = rows(&suites::RECIPES, &[]).unwrap();
    assert_eq!(all[0], "baselineNcclAllgatherMatmul");
    for name in ["directExchange", "ringGet", "pushChunks:chunks=", "fused"] {
        assert!(
            all.iter().any(|row| row.starts_with(name)),
            "{name}: {all:?}"
        );
    }
    assert!(!all.contains(&"naiveRemoteRead".to_owned()));
    assert_eq!(rows(&suites::PIPELINE, &[]).unwrap(), all);
}

#[test]
fn published_figures_are_of_problems_that_the_suite_has_and_rows_that_exist() {
    for suite in ALL {
        let problems: Vec<_> = [2, 4]
            .iter()
            .flat_map(|&world| (suite.problems)(BackendKind::Cuda, world))
            .collect();
        let found: usize = problems.iter().map(|&p| suite.published(p).len()).sum();
        assert!(found >= (suite.figures)().len(), "{}", suite.name);
        for figure in (suite.figures)() {
            let ms = figure.published.ms;
            assert!(ms > 0.0 && ms < 20.0, "{figure:?}");
            if let Some(name) = figure.against {
                let entries = (suite.entries)();
                let rows: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
                assert!(rows.contains(&name), "{name}: {rows:?}");
            }
        }
    }
    let large = suites::PIPELINE.published((Shape::new(32768, 8192, 16384), DType::Bf16));
    assert!((large[0].published.ms - 12.97).abs() < 0.01, "{large:?}");
}

/// What others published stands in the row that does the same: the same algorithm over the same transport.
#[test]
fn a_published_figure_stands_beside_its_own_row() {
    let mut known = [
        ("overlap-allgather", "in sequence", "sequentialAllGather"),
        ("overlap-allgather", "overlapped", "overlappedAllGather"),
        ("row-parallel", "4 chunks on 2 streams", "rowParallelLinear"),
        (
            "recipes",
            "NCCL, then cuBLAS",
            "baselineNcclAllgatherMatmul",
        ),
    ]
    .map(|(suite, what, row)| (suite, what.to_owned(), row));
    let mut found = Vec::new();
    for suite in ALL {
        for figure in (suite.figures)() {
            // nvFuser's seven have the names of our rows.
            if let Some(row) = figure.against
                && figure.published.what != row
            {
                found.push((suite.name, figure.published.what, row));
            }
        }
    }
    found.sort();
    found.dedup();
    known.sort();
    assert_eq!(found, known);
}
