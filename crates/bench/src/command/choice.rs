//! `warpweave plan explain`, `evaluate` and `compare`: predictions and choices against measurements.

use std::io::Write;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use warpweave_overlap::algorithms::{self, Capabilities};
use warpweave_overlap::plan::{Plan, Problem, Provider, Scaling};
use warpweave_overlap::select::{self, Evaluation, Measurement, Measurements, Request, select};
use warpweave_overlap::{Operation, simulate};
use warpweave_report::statistics::Spread;
use warpweave_report::{Document, Operands, Outcome, Shape, Status, file};
use warpweave_symm_mem::DType;

use super::measure::{machine, machine_or_measured};
use crate::alone::gemm_alone;
use crate::cli::{ChoiceArgs, CompareArgs};
use crate::error::{BenchError, Result};
use crate::plans::of_ranks;

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
        machine: &machine_or_measured(args.machine.as_deref(), args.world)?,
        capabilities: capabilities(args, problem.multicast),
        measurements: &measured(&args.measured)?.0,
    };
    write!(out, "{}", select(&request)?)?;
    Ok(())
}

/// Prints, for each measured problem, the best and what would have been chosen from the others.
pub(super) fn evaluate(args: &ChoiceArgs, multicast: bool, out: &mut impl Write) -> Result<()> {
    let capabilities = capabilities(args, multicast);
    let (measurements, _) = measured(&args.measured)?;
    let machine = machine_or_measured(args.machine.as_deref(), args.world)?;
    let evaluations = select::evaluate(&measurements, &machine, capabilities)?;
    let regrets = evaluations.iter().map(Evaluation::regret);
    let worst = regrets.reduce(f64::max).ok_or_else(nothing)?;
    let headings = [
        "operation",
        "ranks",
        "problem",
        "best",
        "µs",
        "chosen unseen",
        "/ best",
        "by the model",
        "/ best",
    ];
    let cells = |e: &Evaluation| {
        let over = |us: f64| format!("{:.3}", us / e.best.1);
        vec![
            e.operation.to_string(),
            e.world.to_string(),
            named(&e.problem),
            e.best.0.to_string(),
            format!("{:.1}", e.best.1),
            e.unseen.0.to_string(),
            over(e.unseen.1),
            e.model.0.to_string(),
            over(e.model.1),
        ]
    };
    table(&headings, evaluations.iter().map(cells), out)?;
    writeln!(
        out,
        "{} problems; chosen without having seen the problem, the worst is {worst:.3} of the best",
        evaluations.len()
    )?;
    Ok(())
}

fn nothing() -> BenchError {
    BenchError::Usage("nothing was measured: see --measured".into())
}

fn named(problem: &Problem) -> String {
    let Problem { m, n, k, dtype, .. } = problem;
    format!("{m}x{n}x{k} {dtype}{}", problem.scaling.suffix())
}

fn table(
    headings: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
    out: &mut impl Write,
) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header(headings).add_rows(rows);
    Ok(writeln!(out, "{table}")?)
}

fn capabilities(args: &ChoiceArgs, multicast: bool) -> Capabilities {
    Capabilities {
        multicast,
        sm90: !args.no_sm90,
    }
}

/// A measured time with what the model says of it, µs.
struct Case {
    name: String,
    world: usize,
    problem: Problem,
    measured: f64,
    simulated: f64,
}

impl Case {
    fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }

    fn error(&self) -> f64 {
        (self.ratio() - 1.0).abs()
    }
}

/// Prints the simulated and the measured time of everything measured, the largest error first, and the median
/// error.
pub(super) fn compare(args: &CompareArgs, out: &mut impl Write) -> Result<()> {
    let machine = machine(&args.machine)?;
    let (measurements, gemms) = measured(&args.measured)?;
    let simulated = |plans: &[Plan]| Ok::<_, BenchError>(simulate(plans, &machine, 1)?.total());
    let mut cases = Vec::new();
    for m in measurements.iter() {
        cases.push(Case {
            name: m.configuration.to_string(),
            world: m.world,
            problem: m.problem,
            measured: m.us,
            simulated: simulated(&m.configuration.plans(m.world, &m.problem)?)?,
        });
    }
    for (operation, world, problem, measured) in gemms {
        // As the bench runs it.
        let alone = gemm_alone("GEMM alone", Provider::CublasLt, Some(operation));
        let plans = of_ranks(world, |rank| (alone.plan)(rank, world, &problem))?;
        cases.push(Case {
            name: format!("GEMM alone ({operation})"),
            world,
            problem,
            measured,
            simulated: simulated(&plans)?,
        });
    }
    cases.sort_by(|a, b| b.error().total_cmp(&a.error()));
    let worst = cases.first().map(Case::error).ok_or_else(nothing)?;
    let headings = [
        "implementation",
        "ranks",
        "problem",
        "measured, µs",
        "simulated, µs",
        "simulated / measured",
    ];
    let cells = |case: &Case| {
        vec![
            case.name.clone(),
            case.world.to_string(),
            named(&case.problem),
            format!("{:.1}", case.measured),
            format!("{:.1}", case.simulated),
            format!("{:.3}", case.ratio()),
        ]
    };
    table(&headings, cases.iter().take(args.rows).map(cells), out)?;
    // The largest errors are first: of two in the middle the larger one.
    let at_most = |part: f64| cases[((cases.len() - 1) as f64 * (1.0 - part)) as usize].error();
    let (median, p95) = (at_most(0.5), at_most(0.95));
    let (count, name) = (cases.len(), &machine.name);
    writeln!(
        out,
        "{count} figures on {name}: median error {median:.3}, p95 {p95:.3}, worst {worst:.3}"
    )?;
    Ok(())
}

/// The times of GEMMs alone, as a rank computes them in an operation: ranks, problem, median of single calls
/// in µs.
type Gemms = Vec<(Operation, usize, Problem, f64)>;

/// All that was measured, of configurations and of GEMMs alone, without what the clock itself costs where the
/// report knows it.
fn measured(paths: &[PathBuf]) -> Result<(Measurements, Gemms)> {
    let mut all = (Measurements::none(), Gemms::new());
    for path in paths {
        let text = file::read(path)?;
        if text.trim_start().starts_with('{') {
            of_report(&text, path, &mut all)?;
        } else {
            let lines = Measurements::from_text(&text).map_err(|e| usage(path, &e))?;
            lines.iter().for_each(|m| all.0.push(m.clone()));
        }
    }
    Ok(all)
}

fn usage(path: &Path, why: &dyn std::fmt::Display) -> BenchError {
    BenchError::Usage(format!("{}: {why}", path.display()))
}

/// What the clock itself cost, ms; 0 where the report does not know. Older reports know it of some problems
/// only, from the breakdown.
fn clock(result: &Outcome, of_run: Option<Spread>) -> f64 {
    let empty = result.breakdown.as_ref().and_then(|b| b.empty_ms);
    of_run.or(empty).map_or(0.0, |spread| spread.median)
}

/// A problem with the elements that a table names: `bf16`, or `e4m3 scales by row`.
fn of_elements(problem: Problem, named: &str) -> Option<Problem> {
    let (dtype, suffix) = named.split_at(named.find(' ').unwrap_or(named.len()));
    let all = [Scaling::None, Scaling::Tensor, Scaling::Row, Scaling::Block];
    let scaling = all.into_iter().find(|scaling| scaling.suffix() == suffix)?;
    let dtype = dtype.parse().ok()?;
    Some(Problem { dtype, ..problem }.with_scaling(scaling))
}

/// The right rows whose names are those of algorithms, and the GEMMs alone.
fn of_report(
    text: &str,
    path: &Path,
    (measurements, gemms): &mut (Measurements, Gemms),
) -> Result<()> {
    let report = match Document::from_json(text) {
        Ok(Document::Report(report)) if !report.is_of_collectives() => report,
        Ok(_) => return Err(usage(path, &"there are no plans in it")),
        Err(why) => return Err(usage(path, &why)),
    };
    for results in report.results {
        let Operands::Matrices {
            shape: Shape { m, n, k },
        } = results.on
        else {
            continue;
        };
        let problem = of_elements(Problem::new(m, n, k, DType::Bf16), &results.dtype)
            .ok_or_else(|| usage(path, &format!("`{}` is no element type", results.dtype)))?;
        let world = results.world;
        let clock = clock(&results, report.clock_ms);
        let us = |spread: Spread| (spread.median - clock) * 1e3;
        // What the rows compute; older reports do not name it.
        let mut configured = results.rows.iter();
        let operation = configured.find_map(|row| {
            let found = algorithms::find(&row.implementation).ok()?;
            Some(found.operation())
        });
        let alone = results.limit.as_ref().and_then(|limit| limit.gemm_ms);
        if let (Some(operation), Some(alone)) = (operation, alone) {
            gemms.push((operation, world, problem, us(alone)));
        }
        for row in results.rows.iter().filter(|row| row.status == Status::Ok) {
            let (Ok(configuration), Some(spread)) =
                (algorithms::find(&row.implementation), row.single_ms)
            else {
                continue;
            };
            measurements.push(Measurement {
                configuration,
                world,
                problem,
                us: us(spread),
            });
        }
    }
    Ok(())
}
