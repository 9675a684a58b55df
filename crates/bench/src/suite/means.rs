//! Implementations against the baseline, over all problems of an element type.

use warpweave_report::statistics::{distinct, geometric_mean};
use warpweave_report::{Mean, Outcome, Row, Status};

/// The mean of each implementation but the first, for each element type, over the problems where both were
/// right.
pub(super) fn means(results: &[Outcome]) -> Vec<Mean> {
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

fn back_to_back(baseline: &Row, row: &Row) -> Option<f64> {
    Some(baseline.back_to_back_ms?.median / row.back_to_back_ms?.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_report::Shape;
    use warpweave_report::statistics::Spread;
    use warpweave_report::{Kind, Operands};

    fn result(dtype: &'static str, ratio: Option<f64>) -> Outcome {
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
}
