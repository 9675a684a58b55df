//! `warpweave plan explain` and `warpweave plan evaluate`.

use std::io::Write;

use comfy_table::Table;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::Capabilities;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::select::{self, Evaluation, Request, select};

use super::kept::machine_or_measured;
use super::measured::measured;
use crate::cli::ChoiceArgs;
use crate::error::Result;

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
        measurements: &measured(&args.measured)?.measurements,
    };
    write!(out, "{}", select(&request)?)?;
    Ok(())
}

/// Prints, for each measured problem, the best and what would have been chosen from the others.
pub(super) fn evaluate(args: &ChoiceArgs, multicast: bool, out: &mut impl Write) -> Result<()> {
    let capabilities = capabilities(args, multicast);
    let measured = measured(&args.measured)?;
    let machine = machine_or_measured(args.machine.as_deref(), args.world)?;
    let evaluations = select::evaluate(&measured.measurements, &machine, capabilities)?;
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
