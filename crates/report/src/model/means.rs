//! Implementations against each other over all problems: geometric means.

use super::{Mean, Metric, Outcome, Row, Status};
use crate::statistics::{distinct, geometric_mean};

/// The mean of each implementation but the first, for each element type, over the problems where both were
/// right.
pub fn means(results: &[Outcome]) -> Vec<Mean> {
    let dtypes = distinct(results.iter().map(|result| &result.dtype));
    let rows = results.first().map_or(0, |result| result.rows.len());
    let mut means = Vec::new();
    for dtype in dtypes {
        let of_dtype = || results.iter().filter(|result| result.dtype == *dtype);
        for row in 1..rows {
            let pairs: Vec<_> = of_dtype()
                .filter_map(|result| Some((result.rows.first()?, result.rows.get(row)?)))
                .filter(|(baseline, row)| [baseline, row].iter().all(|r| r.status == Status::Ok))
                .collect();
            let Some((baseline, implementation)) = pairs.first() else {
                continue;
            };
            let single: Vec<_> = pairs.iter().filter_map(|(_, r)| r.times_baseline).collect();
            let back_to_back: Option<Vec<_>> = pairs
                .iter()
                .map(|(baseline, row)| back_to_back(baseline, row))
                .collect();
            means.extend(geometric_mean(&single).map(|times_baseline| Mean {
                implementation: implementation.implementation.clone(),
                baseline: baseline.implementation.clone(),
                dtype: dtype.clone(),
                problems: single.len(),
                times_baseline,
                times_baseline_back_to_back:
                    back_to_back.and_then(|ratios| geometric_mean(&ratios)),
            }));
        }
    }
    means
}

/// What calls with operands of the caller's cost over bound plans, in sentences: for each configuration that
/// ran as `NAME/bound` and as `NAME` or `NAME/local`, the mean over problems of one time over the other.
pub fn over_bound(results: &[Outcome]) -> Vec<String> {
    let rows = results.iter().flat_map(|outcome| &outcome.rows);
    let names = distinct(rows.map(|row| row.implementation.as_str()));
    let mut notes = Vec::new();
    for bound in names {
        let Some(name) = bound.strip_suffix("/bound") else {
            continue;
        };
        for called in [name.to_owned(), format!("{name}/local")] {
            let ratios = |metric: Metric| -> Vec<f64> {
                let time = |outcome: &Outcome, name: &str| outcome.row(name)?.median(metric);
                let ratio = |outcome| Some(time(outcome, &called)? / time(outcome, bound)?);
                results.iter().filter_map(ratio).collect()
            };
            let [single, graph] = [Metric::Single, Metric::Graph].map(ratios);
            let problems = single.len();
            let means = geometric_mean(&single).zip(geometric_mean(&graph));
            notes.extend(means.map(|(single, graph)| {
                format!(
                    "{called} over {bound}, geometric mean of {problems} problems: {single:.3} for one call, \
                     {graph:.3} for graph launches back to back."
                )
            }));
        }
    }
    notes
}

fn back_to_back(baseline: &Row, row: &Row) -> Option<f64> {
    Some(baseline.back_to_back_ms?.median / row.back_to_back_ms?.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, Operands};
    use crate::sizes::Shape;
    use crate::statistics::Spread;

    fn result(dtype: &str, ratio: Option<f64>) -> Outcome {
        let row = |name: &str, ms: Option<f64>| Row {
            status: ms.map_or(Status::NotRun, |_| Status::Ok),
            times_baseline: ms.map(|ms| 1.0 / ms),
            back_to_back_ms: ms.and_then(|ms| Spread::of(&[ms / 2.0])),
            ..Row::new(name, Kind::Ours, Status::NotRun, None)
        };
        let shape = Shape::new(8, 8, 8);
        let on = Operands::Matrices { shape };
        let ours = row("cutlass", ratio.map(|ratio| 1.0 / ratio));
        Outcome {
            rows: vec![row("cublasLt", Some(1.0)), ours],
            ..Outcome::new(None, on, dtype.into(), 1)
        }
    }

    #[test]
    fn each_element_type_has_its_mean_over_the_problems_that_ran() {
        let results = [
            result("bf16", Some(4.0)),
            result("bf16", Some(0.25)),
            result("bf16", None),
            result("f16", Some(0.5)),
        ];
        let means = means(&results);
        let told: Vec<_> = means
            .iter()
            .map(|mean| (mean.dtype.as_ref(), mean.problems, mean.times_baseline))
            .collect();
        assert_eq!(told, [("bf16", 2, 1.0), ("f16", 1, 0.5)]);
        assert_eq!(means[1].times_baseline_back_to_back, Some(0.5));
        assert_eq!(
            (means[0].implementation.as_str(), means[0].baseline.as_str()),
            ("cutlass", "cublasLt")
        );
    }

    #[test]
    fn one_implementation_alone_has_no_mean() {
        let mut alone = result("f32", Some(1.0));
        alone.rows.truncate(1);
        assert!(means(&[alone]).is_empty() && means(&[]).is_empty());
    }

    #[test]
    fn calls_are_held_against_bound_plans_where_both_ran() {
        let row = |name: &str, ms: f64| Row {
            single_ms: Spread::of(&[ms]),
            graph_ms: Spread::of(&[ms * ms]),
            ..Row::new(name, Kind::Ours, Status::Ok, None)
        };
        let result = |ms: f64| Outcome {
            rows: vec![
                row("ring", ms),
                row("ring/bound", 1.0),
                row("put/bound", 1.0),
            ],
            ..result("bf16", None)
        };
        let notes = over_bound(&[result(4.0), result(1.0)]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let told =
            "ring over ring/bound, geometric mean of 2 problems: 2.000 for one call, 4.000 for";
        assert!(notes[0].starts_with(told), "{notes:?}");
    }
}
