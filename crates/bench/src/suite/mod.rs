//! What can be measured: suites of implementations of the same problems.

use serde::{Deserialize, Serialize};
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::{Problem, Provider};
use warpweave_symm_mem::{BackendKind, DType};

use crate::error::{BenchError, Result};
use crate::limit::gemm_alone;
use crate::plans::Implementation;
use crate::report::Name;
use crate::session::ExecuteBackend;
use crate::shape::Shape;

mod gather_alone;
mod groups;
mod means;
mod problem;
mod run;
mod stage;
mod suites;

pub use run::{Settings, run};
pub(crate) use stage::{Run, Stage};
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
    entries: fn() -> Vec<Entry>,
    /// Its own problems for a number of ranks, where the command line names none.
    problems: fn(BackendKind, usize) -> Vec<Sizes>,
    /// What others published of its problems.
    figures: fn() -> Vec<Figure>,
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

/// Something that a suite can measure.
#[derive(Clone, Debug)]
enum Entry {
    /// An algorithm with everything chosen.
    Configured(Configuration),
    /// A GEMM without communication, and the operation among whose rows it stands.
    Gemm {
        name: &'static str,
        summary: &'static str,
        provider: Provider,
        operation: Option<Operation>,
    },
    /// A plan of the bench's own.
    Own {
        name: &'static str,
        summary: &'static str,
        operation: Operation,
        implementation: fn() -> Implementation,
    },
}

impl Entry {
    fn name(&self) -> String {
        match self {
            Entry::Configured(configuration) => configuration.name(),
            Entry::Gemm { name, .. } | Entry::Own { name, .. } => (*name).to_owned(),
        }
    }

    fn operation(&self) -> Option<Operation> {
        match self {
            Entry::Configured(configuration) => Some(configuration.operation()),
            Entry::Gemm { operation, .. } => *operation,
            Entry::Own { operation, .. } => Some(*operation),
        }
    }

    fn implementation(&self) -> Implementation {
        match self {
            Entry::Configured(configuration) => configuration.clone().into(),
            Entry::Gemm {
                name,
                provider,
                operation,
                ..
            } => gemm_alone(name, *provider, *operation),
            Entry::Own { implementation, .. } => implementation(),
        }
    }
}

/// The implementations of one operation.
pub struct Case {
    /// What they compute; `None` for GEMMs without communication.
    pub operation: Option<Operation>,
    /// In the order of the table.
    pub implementations: Vec<Implementation>,
    /// Name of the baseline.
    pub baseline: String,
}

impl Suite {
    /// What its table is made of, each with a sentence: algorithms once, with their parameters.
    pub fn catalogue(&self) -> Vec<(String, String)> {
        if self.is_of_collectives() {
            let rows = crate::collectives::catalogue().into_iter();
            return rows.map(|(n, s)| (n.to_owned(), s.to_owned())).collect();
        }
        let mut told: Vec<(String, String)> = Vec::new();
        for entry in (self.entries)() {
            let (name, summary) = match &entry {
                Entry::Configured(configuration) => {
                    let algorithm = configuration.algorithm();
                    let choices: Vec<_> =
                        algorithm.parameters.iter().map(|p| p.to_string()).collect();
                    let choices = match choices.is_empty() {
                        true => String::new(),
                        false => format!(" [{}]", choices.join(", ")),
                    };
                    (algorithm.name, format!("{}{choices}", algorithm.summary))
                }
                Entry::Gemm { name, summary, .. } | Entry::Own { name, summary, .. } => {
                    (*name, (*summary).to_owned())
                }
            };
            if told.iter().all(|(known, _)| known != name) {
                told.push((name.to_owned(), summary));
            }
        }
        told
    }

    /// Whether it measures collectives, which are no plans.
    pub fn is_of_collectives(&self) -> bool {
        self.name == suites::COLLECTIVES.name
    }

    /// The implementations of these names in the order of the table, those that it does not have by
    /// themselves behind it; all of the table without names. Any configuration of the suite's operations has
    /// a name.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming what there is; there is no algorithm of its operations.
    pub fn cases(&self, names: &[String]) -> Result<Vec<Case>> {
        let table = (self.entries)();
        let mut chosen = match names.is_empty() {
            true => table.clone(),
            false => self.chosen(&table, names)?,
        };
        let place = |entry: &Entry| {
            let name = entry.name();
            let in_table = table.iter().position(|own| own.name() == name);
            let in_registry = || {
                let base = name.split(':').next();
                algorithms::algorithms().position(|a| Some(a.name) == base)
            };
            in_table.unwrap_or_else(|| table.len() + in_registry().unwrap_or(0))
        };
        chosen.sort_by_key(place);
        let mut cases: Vec<Case> = Vec::new();
        for entry in chosen {
            let operation = entry.operation();
            let implementation = entry.implementation();
            match cases.iter_mut().find(|case| case.operation == operation) {
                Some(case) => case.implementations.push(implementation),
                None => {
                    let first = table.iter().find(|own| own.operation() == operation);
                    cases.push(Case {
                        operation,
                        implementations: vec![implementation],
                        baseline: first.unwrap_or(&entry).name(),
                    });
                }
            }
        }
        match cases.is_empty() {
            true => Err(BenchError::Usage(format!(
                "there is no algorithm yet for the suite {}",
                self.name
            ))),
            false => Ok(cases),
        }
    }

    fn chosen(&self, table: &[Entry], names: &[String]) -> Result<Vec<Entry>> {
        let one = |name: &String| {
            let own = table.iter().find(|entry| entry.name() == *name);
            if let Some(entry) = own {
                return Ok(entry.clone());
            }
            let known: Vec<_> = self.catalogue().into_iter().map(|(name, _)| name).collect();
            let unknown = |why: String| {
                Err(BenchError::Usage(format!(
                    "suite {} has no implementation `{name}`; it has {}{why}",
                    self.name,
                    known.join(", ")
                )))
            };
            if self.operations.is_empty() {
                return unknown(String::new());
            }
            match algorithms::find(name) {
                Ok(found) if self.operations.contains(&found.operation()) => {
                    Ok(Entry::Configured(found))
                }
                Ok(found) => unknown(format!(", and `{name}` computes {}", found.operation())),
                Err(error) => unknown(format!("; {error}")),
            }
        };
        names.iter().map(one).collect()
    }

    /// The problems that the suite is about among `world` ranks.
    pub fn problems(&self, kind: BackendKind, world: usize) -> Vec<Sizes> {
        (self.problems)(kind, world)
    }

    /// What others published of a problem.
    pub fn published(&self, (shape, dtype): Sizes) -> Vec<Figure> {
        let mut figures = (self.figures)();
        figures.retain(|figure| figure.shape == shape && figure.dtype == dtype.name());
        figures
    }
}

/// A time that others published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The problem.
    pub shape: Shape,
    /// Its element type.
    pub dtype: Name,
    /// What was measured.
    pub what: Name,
    /// Milliseconds.
    pub ms: f64,
    /// On what, and by whom.
    pub source: Name,
    /// What of ours it is compared with.
    #[serde(skip)]
    pub against: Against,
}

/// What of ours a published time is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Against {
    /// The configuration of this name.
    Row(&'static str),
    /// The GEMM alone.
    Gemm,
    /// Nothing that we have, or that a file tells.
    #[default]
    Nothing,
}

impl Figure {
    /// The figures of a problem, each by what it is of.
    fn all<const N: usize>(
        (shape, dtype): Sizes,
        source: &'static str,
        figures: [(&'static str, f64, Against); N],
    ) -> [Self; N] {
        figures.map(|(what, ms, against)| Self {
            shape,
            dtype: dtype.name().into(),
            what: what.into(),
            ms,
            source: source.into(),
            against,
        })
    }

    /// Whether it is compared with the row of this name.
    fn is_of(&self, row: &str) -> bool {
        matches!(self.against, Against::Row(name) if name == row)
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
