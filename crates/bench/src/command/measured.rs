//! What was measured, from files: reports of `bench --json`, or lines of text.

use std::path::{Path, PathBuf};

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::select::{Measurement, Measurements};

use crate::error::{BenchError, Result};
use crate::report::{Document, ProblemReport, Status};
use crate::shape::Shape;
use crate::statistics::Spread;

/// All that was measured, without what the clock itself costs where the report knows it.
pub(super) struct Measured {
    /// Of configurations.
    pub measurements: Measurements,
    /// Of products alone.
    pub products: Vec<Product>,
}

/// A product alone, as a rank computes it in an operation.
pub(super) struct Product {
    pub operation: Operation,
    pub world: usize,
    pub problem: Problem,
    /// The median of single calls, µs.
    pub us: f64,
}

/// Reads all of the files.
///
/// # Errors
/// A file that cannot be read or is neither.
pub(super) fn measured(paths: &[PathBuf]) -> Result<Measured> {
    let mut all = Measured {
        measurements: Measurements::none(),
        products: Vec::new(),
    };
    for path in paths {
        let text = std::fs::read_to_string(path).map_err(|source| BenchError::File {
            path: path.clone(),
            source,
        })?;
        if text.trim_start().starts_with('{') {
            of_report(&text, path, &mut all)?;
        } else {
            let lines = Measurements::from_text(&text).map_err(|e| usage(path, &e))?;
            lines.iter().for_each(|m| all.measurements.push(m.clone()));
        }
    }
    Ok(all)
}

fn usage(path: &Path, why: &dyn std::fmt::Display) -> BenchError {
    BenchError::Usage(format!("{}: {why}", path.display()))
}

/// What the clock itself cost, ms; 0 where the report does not know. Older reports know it of some problems only, from the
/// breakdown.
fn clock(result: &ProblemReport, of_run: Option<Spread>) -> f64 {
    let empty = result.breakdown.as_ref().and_then(|b| b.empty_ms);
    of_run.or(empty).map_or(0.0, |spread| spread.median)
}

/// The right rows whose names are those of algorithms, and the products alone.
fn of_report(text: &str, path: &Path, all: &mut Measured) -> Result<()> {
    let report = match Document::from_json(text) {
        Ok(Document::Plans(report)) => report,
        Ok(_) => return Err(usage(path, &"there are no plans in it")),
        Err(why) => return Err(usage(path, &why)),
    };
    for results in report.results {
        let Shape { m, n, k } = results.shape;
        let dtype = results
            .dtype
            .parse()
            .map_err(|_| usage(path, &format!("`{}` is no element type", results.dtype)))?;
        let (world, problem) = (results.world, Problem::new(m, n, k, dtype));
        let clock = clock(&results, report.clock_ms);
        let us = |spread: Spread| (spread.median - clock) * 1e3;
        // What the rows compute; older reports do not name it.
        let mut configured = results.rows.iter();
        let operation = configured.find_map(|row| {
            let found = algorithms::find(&row.implementation).ok()?;
            Some(found.operation())
        });
        if let (Some(operation), Some(limit)) = (operation, &results.limit) {
            all.products.push(Product {
                operation,
                world,
                problem,
                us: us(limit.gemm_ms),
            });
        }
        for row in results.rows.iter().filter(|row| row.status == Status::Ok) {
            let (Ok(configuration), Some(spread)) =
                (algorithms::find(&row.implementation), row.single_ms)
            else {
                continue;
            };
            all.measurements.push(Measurement {
                configuration,
                world,
                problem,
                us: us(spread),
            });
        }
    }
    Ok(())
}
