//! `warpweave plan explain` and `warpweave plan evaluate`.

use std::io::Write;
use std::path::Path;

use comfy_table::Table;
use serde::Deserialize;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Capabilities};
use warpweave_overlap::plan::Problem;
use warpweave_overlap::select::{self, Evaluation, Measurement, Measurements, Request, select};

use super::plan::machine;
use crate::cli::ChoiceArgs;
use crate::error::{BenchError, Result};

/// Prints the ranking of all that can run, and why the first stands first.
pub(super) fn explain(
    operation: Operation,
    args: &ChoiceArgs,
    problem: &Problem,
    out: &mut impl Write,
) -> Result<()> {
    let request = Request {
        operation,
        problem: *problem,
        world: args.world,
        machine: &machine(&args.machine)?,
        capabilities: capabilities(args, problem.multicast),
        measurements: &measurements(args)?,
    };
    write!(out, "{}", select(&request)?)?;
    Ok(())
}

/// Prints, for each measured problem, the best and what would have been chosen from the others.
pub(super) fn evaluate(args: &ChoiceArgs, multicast: bool, out: &mut impl Write) -> Result<()> {
    let capabilities = capabilities(args, multicast);
    let evaluations =
        select::evaluate(&measurements(args)?, &machine(&args.machine)?, capabilities)?;
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "operation",
        "ranks",
        "problem",
        "best",
        "µs",
        "chosen unseen",
        "/ best",
        "by the model",
        "/ best",
    ]);
    for Evaluation {
        operation,
        world,
        problem,
        best,
        unseen,
        model,
    } in &evaluations
    {
        let Problem { m, n, k, dtype, .. } = problem;
        table.add_row([
            operation.to_string(),
            world.to_string(),
            format!("{m}x{n}x{k} {dtype}"),
            best.0.to_string(),
            format!("{:.1}", best.1),
            unseen.0.to_string(),
            format!("{:.3}", unseen.1 / best.1),
            model.0.to_string(),
            format!("{:.3}", model.1 / best.1),
        ]);
    }
    writeln!(out, "{table}")?;
    let worst = evaluations
        .iter()
        .map(Evaluation::regret)
        .fold(1.0, f64::max);
    writeln!(
        out,
        "{} problems; chosen without having seen the problem, the worst is {worst:.3} of the best",
        evaluations.len()
    )?;
    Ok(())
}

fn capabilities(args: &ChoiceArgs, multicast: bool) -> Capabilities {
    Capabilities {
        multicast,
        sm90: !args.no_sm90,
    }
}

fn measurements(args: &ChoiceArgs) -> Result<Measurements> {
    let mut all = Measurements::none();
    for path in &args.measured {
        let text = std::fs::read_to_string(path).map_err(|source| BenchError::File {
            path: path.clone(),
            source,
        })?;
        let one = if text.trim_start().starts_with('{') {
            of_report(&text, path)?
        } else {
            Measurements::from_text(&text).map_err(|e| usage(path, &e))?
        };
        one.iter().for_each(|m| all.push(m.clone()));
    }
    Ok(all)
}

fn usage(path: &Path, error: &dyn std::error::Error) -> BenchError {
    BenchError::Usage(format!("{}: {error}", path.display()))
}

/// The part of a report that tells of times.
#[derive(Deserialize)]
struct Report {
    results: Vec<Results>,
}

#[derive(Deserialize)]
struct Results {
    shape: Sizes,
    dtype: String,
    world: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Sizes {
    m: usize,
    n: usize,
    k: usize,
}

#[derive(Deserialize)]
struct Row {
    implementation: String,
    status: String,
    single_ms: Option<Spread>,
}

#[derive(Deserialize)]
struct Spread {
    median: f64,
}

/// The right rows of a report whose names are those of algorithms.
fn of_report(text: &str, path: &Path) -> Result<Measurements> {
    let report: Report = serde_json::from_str(text).map_err(|e| usage(path, &e))?;
    let mut all = Measurements::none();
    for results in report.results {
        let Sizes { m, n, k } = results.shape;
        let dtype = results.dtype.parse().map_err(|_| {
            BenchError::Usage(format!(
                "{}: `{}` is no element type",
                path.display(),
                results.dtype
            ))
        })?;
        for row in results.rows.iter().filter(|row| row.status == "ok") {
            let (Ok(configuration), Some(spread)) =
                (algorithms::find(&row.implementation), &row.single_ms)
            else {
                continue;
            };
            all.push(Measurement {
                configuration,
                world: results.world,
                problem: Problem::new(m, n, k, dtype),
                us: spread.median * 1e3,
            });
        }
    }
    Ok(all)
}
