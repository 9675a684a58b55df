//! What can be measured: suites of implementations of the same problems, a file each.

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::plan::{Provider, Problem};
use warpweave_symm_mem::{BackendKind, DType};

use crate::candidate::Implementation;
use crate::error::{BenchError, Result};
use crate::limit::product_alone;
use crate::shape::Shape;

mod collectives;
mod column_parallel;
mod figure;
mod fused_matmul;
mod gemm;
mod groups;
mod matmul_reduce;
mod means;
mod overlap_all_gather;
mod pipeline;
mod quick;
mod recipes;
mod row_parallel;
mod run;
mod stage;

pub use figure::{Beside, Figure};
pub use gemm::SUITE as GEMM;
pub use run::{Settings, run, run_with};

/// A problem of a suite: its sizes and its element type.
pub type Sizes = (Shape, DType);

/// A set of implementations that solve the same problem.
#[derive(Debug)]
pub struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it measures, and whose figures it reproduces.
    pub reproduces: &'static str,
    /// What is computed; several where problems are measured for one after the other, none where nothing is communicated.
    pub operations: &'static [Operation],
    /// What it measures where nothing is asked for by name: of each operation the baseline first.
    entries: fn() -> Vec<Entry>,
    /// Its own problems for a number of ranks, where the command line names none.
    problems: fn(BackendKind, usize) -> Vec<Sizes>,
    /// What others published of its problems.
    figures: fn() -> Vec<Figure>,
}

/// All suites, the one that is run without a name first.
pub const ALL: [&Suite; 11] = [
    &fused_matmul::SUITE,
    &recipes::SUITE,
    &pipeline::SUITE,
    &row_parallel::SUITE,
    &column_parallel::SUITE,
    &matmul_reduce::SCATTER,
    &matmul_reduce::ALL,
    &overlap_all_gather::SUITE,
    &gemm::SUITE,
    &collectives::SUITE,
    &quick::SUITE,
];

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
    /// A product without communication, and the operation beside whose rows it stands.
    Product {
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
            Entry::Product { name, .. } | Entry::Own { name, .. } => (*name).to_owned(),
        }
    }

    fn operation(&self) -> Option<Operation> {
        match self {
            Entry::Configured(configuration) => Some(configuration.operation()),
            Entry::Product { operation, .. } => *operation,
            Entry::Own { operation, .. } => Some(*operation),
        }
    }

    fn implementation(&self) -> Implementation {
        match self {
            Entry::Configured(configuration) => configuration.clone().into(),
            Entry::Product {
                name,
                provider,
                operation,
                ..
            } => product_alone(name, *provider, *operation),
            Entry::Own { implementation, .. } => implementation(),
        }
    }
}

/// The implementations of one operation.
pub struct Case {
    /// What they compute; `None` for products without communication.
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
            let ways = crate::collectives::catalogue().into_iter();
            return ways.map(|(n, s)| (n.to_owned(), s.to_owned())).collect();
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
                Entry::Product { name, summary, .. } | Entry::Own { name, summary, .. } => {
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
        self.name == collectives::SUITE.name
    }

    /// The implementations of these names in the order of the table, those that it does not have by themselves behind it;
    /// all of the table without names. Any configuration of the suite's operations has a name.
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

/// The problems of every suite on the host: 131 rows do not divide by four, and no size is a multiple of anything.
fn on_host() -> Vec<Sizes> {
    vec![
        (Shape::new(256, 256, 256), DType::F16),
        (Shape::new(131, 71, 90), DType::Bf16),
    ]
}

/// Everything that is worth a try for an operation.
fn all_of(operation: Operation) -> Vec<Entry> {
    let candidates = algorithms::candidates(operation).into_iter();
    candidates.map(Entry::Configured).collect()
}

/// Every algorithm of an operation as it usually is, and what differs from that in one parameter.
fn variations_of(operation: Operation) -> Vec<Entry> {
    let every = algorithms::every().into_iter();
    let own = every.filter(|configuration| configuration.operation() == operation);
    own.map(Entry::Configured).collect()
}

/// The baseline of all-gather + matmul, and what is no row of nvFuser's table: each as usual, and what differs from that in
/// one parameter. What is for several nodes adds nothing on one.
fn pipelines() -> Vec<Entry> {
    let table = algorithms::table();
    let pipelines = algorithms::every().into_iter().filter(|candidate| {
        candidate.operation() == Operation::AllGatherMatmul
            && candidate.algorithm().name != "hierarchical"
            && table
                .iter()
                .all(|own| own.algorithm() != candidate.algorithm())
    });
    let all = table.iter().take(1).cloned().chain(pipelines);
    all.map(Entry::Configured).collect()
}

/// The problem of a shape on this backend.
pub fn problem<B: ExecuteBackend>(backend: &B, (shape, dtype): Sizes) -> Problem {
    // The host emulates multicast by copies to every rank, which tells nothing about it.
    let multicast = B::KIND == BackendKind::Cuda && backend.device().multicast.is_yes();
    Problem::new(shape.m, shape.n, shape.k, dtype).with_multicast(multicast)
}

#[cfg(test)]
mod tests;
