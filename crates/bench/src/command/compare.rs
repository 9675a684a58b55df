//! `warpweave plan compare`.

use std::io::Write;

use comfy_table::Table;
use warpweave_overlap::plan::{Provider, Plan, Problem};
use warpweave_overlap::{Machine, simulate};

use super::measured::{Product, measured};
use super::plan::machine;
use crate::cli::CompareArgs;
use crate::error::{BenchError, Result};
use crate::limit::product_alone;

/// A figure with what the model says of it.
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

/// Prints what is simulated beside all that was measured, what is furthest off first, and the median error.
pub(super) fn compare(args: &CompareArgs, out: &mut impl Write) -> Result<()> {
    let machine = machine(&args.machine)?;
    let measured = measured(&args.measured)?;
    let mut cases = Vec::new();
    for m in measured.measurements.iter() {
        let plans = m.configuration.plans(m.world, &m.problem)?;
        cases.push(Case {
            name: m.configuration.to_string(),
            world: m.world,
            problem: m.problem,
            measured: m.us,
            simulated: total(&plans, &machine)?,
        });
    }
    for product in &measured.products {
        cases.push(alone(product, &machine)?);
    }
    cases.sort_by(|a, b| b.error().total_cmp(&a.error()));
    let Some(worst) = cases.first().map(Case::error) else {
        return Err(BenchError::Usage(
            "nothing was measured: see --measured".into(),
        ));
    };
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::ASCII_MARKDOWN);
    table.set_header([
        "implementation",
        "ranks",
        "problem",
        "measured, µs",
        "simulated, µs",
        "simulated / measured",
    ]);
    for case in cases.iter().take(args.rows) {
        let Problem { m, n, k, dtype, .. } = case.problem;
        table.add_row([
            case.name.clone(),
            case.world.to_string(),
            format!("{m}x{n}x{k} {dtype}"),
            format!("{:.1}", case.measured),
            format!("{:.1}", case.simulated),
            format!("{:.3}", case.ratio()),
        ]);
    }
    writeln!(out, "{table}")?;
    writeln!(
        out,
        "{} figures on {}: median error {:.3}, worst {worst:.3}",
        cases.len(),
        machine.name,
        median(&cases),
    )?;
    Ok(())
}

/// Of the errors of `cases`, which are in order; the upper one of two in the middle.
fn median(cases: &[Case]) -> f64 {
    cases[(cases.len() - 1) / 2].error()
}

fn total(plans: &[Plan], machine: &Machine) -> Result<f64> {
    Ok(simulate(plans, machine, 1)?.total())
}

/// The product alone as the bench runs it.
fn alone(product: &Product, machine: &Machine) -> Result<Case> {
    let Product {
        operation,
        world,
        problem,
        us,
    } = *product;
    let implementation = product_alone("product alone", Provider::CublasLt, Some(operation));
    let plans = (0..world)
        .map(|rank| (implementation.plan)(rank, world, &problem))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Case {
        name: format!("product alone ({operation})"),
        world,
        problem,
        measured: us,
        simulated: total(&plans, machine)?,
    })
}
