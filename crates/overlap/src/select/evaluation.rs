//! How good the choices are, held against what was measured.

use super::{Measurement, Measurements, Request, SelectError, select_among};
use crate::algorithms::{Capabilities, Configuration};
use crate::operation::Operation;
use crate::plan::Problem;
use crate::simulate::Machine;

/// What would have been chosen for a problem of which several configurations were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// What is computed.
    pub operation: Operation,
    /// By how many ranks.
    pub world: usize,
    /// On what.
    pub problem: Problem,
    /// The fastest that was measured, with its time in µs.
    pub best: (Configuration, f64),
    /// What is chosen from the measurements of other problems alone, with its measured time in µs.
    pub unseen: (Configuration, f64),
    /// What the model alone would choose, with its measured time in µs.
    pub model: (Configuration, f64),
}

impl Evaluation {
    /// By which factor the choice from other problems' measurements is slower than the best.
    pub fn regret(&self) -> f64 {
        self.unseen.1 / self.best.1
    }
}

/// Chooses, for each problem of the measurements, among what was measured for it, without having seen the
/// problem: once with the measurements of all other problems, once with none.
///
/// Where the problem itself was measured, the choice is the best of what was measured by construction.
///
/// # Errors
/// As [`select`](super::select()).
pub fn evaluate(
    measurements: &Measurements,
    machine: &Machine,
    capabilities: Capabilities,
) -> Result<Vec<Evaluation>, SelectError> {
    let mut problems: Vec<(Operation, usize, Problem)> = Vec::new();
    for m in measurements.iter() {
        let key = (m.configuration.operation(), m.world, m.problem);
        if !problems.contains(&key) {
            problems.push(key);
        }
    }
    let mut found = Vec::new();
    for (operation, world, problem) in problems {
        let here = |m: &Measurement| {
            (m.configuration.operation(), m.world, m.problem) == (operation, world, problem)
        };
        let mut measured: Vec<(Configuration, f64)> = Vec::new();
        for m in measurements.iter().filter(|m| here(m)) {
            match measured.iter_mut().find(|(c, _)| *c == m.configuration) {
                Some((_, us)) => *us = us.min(m.us),
                None => measured.push((m.configuration.clone(), m.us)),
            }
        }
        let others = measurements.clone().filtered(|m| !here(m));
        let choose = |known: &Measurements| {
            let request = Request {
                operation,
                problem,
                world,
                machine,
                capabilities,
                measurements: known,
            };
            let candidates = measured.iter().map(|(c, _)| c.clone()).collect();
            let chosen = select_among(&request, candidates)?;
            let name = &chosen.best().configuration;
            let time = measured.iter().find(|(c, _)| c == name);
            Ok::<_, SelectError>((name.clone(), time.map_or(f64::INFINITY, |(_, us)| *us)))
        };
        let fastest = measured.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let Some(best) = fastest.cloned() else {
            continue;
        };
        found.push(Evaluation {
            operation,
            world,
            problem,
            best,
            unseen: choose(&others)?,
            model: choose(&Measurements::none())?,
        });
    }
    Ok(found)
}
