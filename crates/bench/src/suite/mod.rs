//! What can be measured: suites of implementations of the same problems.

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_report::statistics::distinct;
use warpweave_report::{Published, Shape};
use warpweave_symm_mem::{BackendKind, DType};

use crate::collectives::{self, decode};
use crate::error::{BenchError, Result};
use crate::plans::Implementation;
use crate::session::ExecuteBackend;

mod groups;
mod layers;
mod problem;
mod run;
mod stage;
mod suites;

pub use run::{Settings, run, scaling, scaling_of};
pub(crate) use stage::{Run, Stage};
#[cfg(test)]
pub(crate) use suites::WITH_GATHER;
pub use suites::{ALL, GEMM};

/// A problem of a suite: its sizes and its element type.
pub type Sizes = (Shape, DType);

/// A set of implementations that solve the same problem.
#[derive(Debug)]
pub struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, and whose figures it reproduces.
    pub reproduces: &'static str,
    /// What is computed; several where problems are measured for one after the other, none where nothing is
    /// communicated.
    pub operations: &'static [Operation],
    /// What it measures where nothing is asked for by name: of each operation the baseline first.
    entries: fn() -> Vec<Implementation>,
    /// Its own problems for a number of ranks, where the command line names none.
    pub problems: fn(BackendKind, usize) -> Vec<Sizes>,
    /// Figures that others published for its problems.
    figures: fn() -> Vec<Figure>,
}

/// The suite that runs where none is named.
impl Default for &'static Suite {
    fn default() -> Self {
        ALL[0]
    }
}

/// The suite of this name.
///
/// # Errors
/// There is none, with the names that there are.
pub fn named(name: &str) -> Result<&'static Suite, String> {
    let names = || ALL.map(|suite| suite.name).join(", ");
    ALL.into_iter()
        .find(|suite| suite.name == name)
        .ok_or_else(|| format!("there is no suite `{name}`; known are {}", names()))
}

/// The implementations of one operation.
pub struct Case {
    /// The operation that they compute; `None` for GEMMs without communication.
    pub operation: Option<Operation>,
    /// In the order of the table.
    pub implementations: Vec<Implementation>,
    /// Name of the baseline.
    pub baseline: String,
}

impl Case {
    /// The same in a job of so many nodes: what can span nodes spans these.
    pub fn over_nodes(&mut self, nodes: usize) {
        let all = std::mem::take(&mut self.implementations).into_iter();
        for one in all.map(|one| one.over_nodes(nodes)) {
            if self.implementations.iter().all(|own| own.name != one.name) {
                self.implementations.push(one);
            }
        }
    }
}

impl Suite {
    /// What its table lists, each with a sentence: algorithms once, with their parameters.
    pub fn catalogue(&self) -> Vec<(&'static str, String)> {
        let rows = match self.is_of_collectives() {
            true if self.is_of_decode() => decode::catalogue(),
            true => collectives::catalogue(),
            false => {
                return distinct((self.entries)().into_iter().map(|entry| entry.in_catalogue));
            }
        };
        let rows = rows.into_iter();
        rows.map(|(name, summary)| (name, summary.to_owned()))
            .collect()
    }

    fn names(&self) -> Vec<&'static str> {
        self.catalogue().into_iter().map(|(name, _)| name).collect()
    }

    fn unknown(&self, name: &str, why: &str) -> BenchError {
        let (suite, known) = (self.name, self.names().join(", "));
        BenchError::Usage(format!(
            "suite {suite} has no implementation `{name}`; it has {known}{why}"
        ))
    }

    /// Whether it measures collectives, which are no plans.
    pub fn is_of_collectives(&self) -> bool {
        self.name == suites::COLLECTIVES.name || self.is_of_decode()
    }

    /// Whether it measures the collectives of an engine, between layers.
    pub fn is_of_decode(&self) -> bool {
        self.name == suites::DECODE.name
    }

    /// The implementations of these names in the order of the table, those that it does not have by
    /// themselves after it; all of the table without names. Any configuration of the suite's operations has
    /// a name. Collectives are none.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming what there is.
    pub fn cases(&self, names: &[String]) -> Result<Vec<Case>> {
        if self.is_of_collectives() {
            let known = self.names();
            let other = names.iter().find(|name| !known.contains(&name.as_str()));
            return other.map_or(Ok(Vec::new()), |name| Err(self.unknown(name, "")));
        }
        let table = (self.entries)();
        let mut chosen = match names.is_empty() {
            true => table.clone(),
            false => self.chosen(&table, names)?,
        };
        let place = |entry: &Implementation| {
            let in_table = table.iter().position(|own| own.name == entry.name);
            let in_registry =
                || algorithms::algorithms().position(|a| a.name == entry.in_catalogue.0);
            in_table.unwrap_or_else(|| table.len() + in_registry().unwrap_or(0))
        };
        chosen.sort_by_key(place);
        let mut cases: Vec<Case> = Vec::new();
        for entry in chosen {
            let operation = entry.operation;
            match cases.iter_mut().find(|case| case.operation == operation) {
                Some(case) => case.implementations.push(entry),
                None => {
                    let first = table.iter().find(|own| own.operation == operation);
                    cases.push(Case {
                        operation,
                        baseline: first.unwrap_or(&entry).name.clone(),
                        implementations: vec![entry],
                    });
                }
            }
        }
        Ok(cases)
    }

    fn chosen(&self, table: &[Implementation], names: &[String]) -> Result<Vec<Implementation>> {
        let one = |name: &String| {
            let own = table.iter().find(|entry| entry.name == *name);
            let why = match (own, Implementation::named(name)) {
                (Some(own), _) => return Ok(own.clone()),
                _ if self.operations.is_empty() => String::new(),
                (_, Err(why)) => why,
                (_, Ok(other)) => match other.operation {
                    Some(of) if !self.operations.contains(&of) => {
                        format!(", and `{name}` computes {of}")
                    }
                    _ => return Ok(other),
                },
            };
            Err(self.unknown(name, &why))
        };
        names.iter().map(one).collect()
    }

    /// Whether a problem of its own, of this shape, is measured for an operation.
    fn has(&self, operation: Operation, shape: Shape) -> bool {
        !self.measures_enqueuing() || layers::has(operation, shape)
    }

    /// Whether it measures what calls take the host to enqueue.
    fn measures_enqueuing(&self) -> bool {
        self.name == layers::LAYERS.name
    }

    /// What others published of a problem.
    pub fn published(&self, (shape, dtype): Sizes) -> Vec<Figure> {
        let mut figures = (self.figures)();
        figures.retain(|Figure { published, .. }| {
            published.shape == shape && published.dtype == dtype.name()
        });
        figures
    }
}

/// A time that others published.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name in reports.
    pub published: Published,
    /// The configuration of ours that it is compared with, if there is one.
    pub against: Option<&'static str>,
}

impl Figure {
    /// The figures of a problem, each by what it is of.
    fn all<const N: usize>(
        (shape, dtype): Sizes,
        source: &'static str,
        figures: [(&'static str, f64, Option<&'static str>); N],
    ) -> [Self; N] {
        figures.map(|(what, ms, against)| Self {
            published: Published {
                shape,
                dtype: dtype.name().into(),
                what: what.into(),
                ms,
                source: source.into(),
            },
            against,
        })
    }
}

/// The problem of a shape on this backend.
pub fn problem<B: ExecuteBackend>(backend: &B, (shape, dtype): Sizes) -> Problem {
    // The host emulates multicast by copies to every rank, which tells nothing about it.
    let multicast = B::KIND == BackendKind::Cuda && backend.device().multicast.is_yes();
    Problem::new(shape.m, shape.n, shape.k, dtype).with_multicast(multicast)
}

#[cfg(test)]
mod tests;
