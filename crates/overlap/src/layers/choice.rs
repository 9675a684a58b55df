//! Which configuration computes a layer at which M. Pure, so alike on all ranks.

use super::Reproducible;
use crate::algorithms::{self, Capabilities, Configuration};
use crate::operation::Operation;
use crate::plan::Problem;
use crate::select::{Measurement, Measurements, Request, SelectError, select_among};
use crate::simulate::Machine;

/// What is known of a machine.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The model.
    pub machine: Machine,
    /// What every GPU has.
    pub capabilities: Capabilities,
    /// What was measured.
    pub measurements: Measurements,
}

/// Values of M that have one configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The largest; the smallest follows that of the class before.
    pub last: usize,
    /// What can compute them, the best first.
    pub ranking: Vec<Configuration>,
}

/// The last M of each class up to `most`: the powers of two below it, and itself.
pub fn ends(most: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|power| 1usize << power);
    powers
        .take_while(move |&power| power < most)
        .chain(std::iter::once(most))
}

/// The configurations that a layer can have: those that shard x by contiguous rows; if the result is to be
/// reproducible, those that are [batch-invariant](Configuration::is_batch_invariant). In a job of several
/// nodes what can span nodes spans these.
pub fn candidates(
    operation: Operation,
    reproducible: Reproducible,
    nodes: usize,
) -> Vec<Configuration> {
    let mut candidates = algorithms::candidates_over(operation, nodes);
    candidates.retain(|candidate| {
        candidate.options().choice("sharding") != "cyclic"
            && (reproducible == Reproducible::No || candidate.is_batch_invariant())
    });
    candidates
}

/// Ranks `candidates` for each class of M up to `problem.m`: by [`select`](crate::select()) for the last M of
/// the class, after those that were measured for this very problem, the fastest first.
///
/// # Errors
/// As [`select`](crate::select()).
pub fn classes(
    operation: Operation,
    world: usize,
    problem: &Problem,
    candidates: &[Configuration],
    figures: &Figures,
) -> Result<Vec<Class>, SelectError> {
    let mut classes = Vec::new();
    for last in ends(problem.m) {
        let problem = Problem {
            m: last,
            ..*problem
        };
        let mut measured = measured(world, &problem, candidates, &figures.measurements);
        measured.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        let mut ranking: Vec<Configuration> = measured.into_iter().map(|(c, _)| c).collect();
        let rest: Vec<_> = candidates
            .iter()
            .filter(|c| !ranking.contains(c))
            .cloned()
            .collect();
        if rest.len() == 1 && ranking.is_empty() {
            ranking = rest;
        } else if !rest.is_empty() {
            let request = Request {
                operation,
                problem,
                world,
                machine: &figures.machine,
                capabilities: figures.capabilities,
                measurements: &Measurements::none(),
            };
            match select_among(&request, rest) {
                Ok(selected) => {
                    let selected = selected.ranking().iter().map(|c| c.configuration.clone());
                    ranking.extend(selected);
                }
                Err(_) if !ranking.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        classes.push(Class { last, ranking });
    }
    Ok(classes)
}

/// The candidates that were measured for this problem, with their times.
fn measured(
    world: usize,
    problem: &Problem,
    candidates: &[Configuration],
    measurements: &Measurements,
) -> Vec<(Configuration, f64)> {
    let here = measurements
        .iter()
        .filter(|one| is_of(one, world, problem) && candidates.contains(&one.configuration));
    here.map(|one| (one.configuration.clone(), one.us))
        .collect()
}

/// Whether it was measured for this problem.
pub(super) fn is_of(one: &Measurement, world: usize, problem: &Problem) -> bool {
    let shape = |p: &Problem| (p.m, p.n, p.k, p.dtype, p.scaling, p.activation);
    one.world == world && shape(&one.problem) == shape(problem)
}
