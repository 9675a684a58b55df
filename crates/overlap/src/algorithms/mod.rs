//! The registry: every algorithm of this crate by its exact name.

pub mod all_gather_matmul;
pub mod column_parallel_linear;
mod configuration;
pub mod linear_reduce_scatter;
pub mod matmul_all_reduce;
pub mod matmul_overlapping_all_gather;
pub mod matmul_reduce_scatter;
mod nodes;
mod parameter;
mod reduction;
pub mod row_parallel_linear;
pub mod row_parallel_linear_norm;

use crate::error::PlanError;
use crate::former;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};
use std::ops::Range;
use warpweave_gemm::Scaling;

pub use configuration::{Configuration, Options};
pub use parameter::{Parameter, Value, Values};

/// What a machine must have to run an algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// NVLink multicast, opted in to and not refused.
    pub multicast: bool,
    /// A device of compute capability 9.0: TMA and wgmma.
    pub sm90: bool,
}

impl Capabilities {
    /// Nothing.
    pub const NONE: Capabilities = Capabilities {
        multicast: false,
        sm90: false,
    };

    /// Compute capability 9.0 alone.
    pub const SM90: Capabilities = Capabilities {
        multicast: false,
        sm90: true,
    };

    /// What `self` needs and `machine` lacks.
    pub fn missing_on(self, machine: Capabilities) -> Capabilities {
        Capabilities {
            multicast: self.multicast && !machine.multicast,
            sm90: self.sm90 && !machine.sm90,
        }
    }

    /// Whether nothing is asked for.
    pub fn is_empty(self) -> bool {
        self == Capabilities::default()
    }
}

/// Gives the plan of one rank for a problem. A configuration has validated rank, world and problem before.
pub type Build = fn(&Options, rank: usize, world: usize, &Problem) -> Result<Plan, PlanError>;

/// Gives the rows of A that a rank holds, in the order in which it holds them.
pub type Rows = fn(&Options, rank: usize, world: usize, &Problem) -> Vec<Range<usize>>;

/// The scales that GEMMs take.
const ALL_SCALES: &[Scaling] = &[Scaling::Tensor, Scaling::Row, Scaling::Block];

/// The scales that kernels of several ranks take.
const TENSOR_OR_ROW: &[Scaling] = &[Scaling::Tensor, Scaling::Row];

/// An algorithm that computes an operation.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// The name in tables, on command lines and in plans.
    pub name: &'static str,
    /// What it computes.
    pub operation: Operation,
    /// One sentence.
    pub summary: &'static str,
    /// What it needs on a GPU; the host backend runs all of them.
    pub needs: Capabilities,
    /// Whether it needs multicast with these options, too.
    pub multicast: fn(&Options) -> bool,
    /// What can be chosen.
    pub parameters: &'static [Parameter],
    /// Builds the plan of one rank.
    pub build: Build,
    /// The rows of A that a rank holds, where they are not [`Problem::shard`].
    pub rows: Option<Rows>,
    /// Says of options that another combination gives the same plans, where some do.
    pub redundant: Option<fn(&Options) -> bool>,
    /// Whether it is [batch-invariant](Configuration::is_batch_invariant) with these options.
    pub batch_invariant: fn(&Options) -> bool,
    /// With which scales it takes operands of e4m3 with these options; with none, it does not take them.
    pub scalings: fn(&Options) -> &'static [Scaling],
    /// Whether it has the [activation](Problem::activation) of a problem with these options.
    pub has_activation: fn(&Options) -> bool,
}

impl Algorithm {
    /// One that runs everywhere, and in which nothing can be chosen.
    pub const fn new(
        name: &'static str,
        operation: Operation,
        summary: &'static str,
        build: Build,
    ) -> Self {
        Algorithm {
            name,
            operation,
            summary,
            needs: Capabilities::NONE,
            multicast: |_| false,
            parameters: &[],
            build,
            rows: None,
            redundant: None,
            batch_invariant: |_| false,
            scalings: |_| &[],
            has_activation: |_| false,
        }
    }

    /// With operands of e4m3 too, with any scales.
    #[must_use]
    pub const fn takes_e4m3(self) -> Self {
        self.takes_scales(|_| ALL_SCALES)
    }

    /// With operands of e4m3 too, with these scales.
    #[must_use]
    pub const fn takes_scales(self, scalings: fn(&Options) -> &'static [Scaling]) -> Self {
        Algorithm { scalings, ..self }
    }

    /// With options for which it has the activation of a problem.
    #[must_use]
    pub const fn has_activation(self, has_activation: fn(&Options) -> bool) -> Self {
        Algorithm {
            has_activation,
            ..self
        }
    }

    /// With this need on a GPU.
    #[must_use]
    pub const fn needs(self, needs: Capabilities) -> Self {
        Algorithm { needs, ..self }
    }

    /// With options for which it needs multicast.
    #[must_use]
    pub const fn multicast(self, multicast: fn(&Options) -> bool) -> Self {
        Algorithm { multicast, ..self }
    }

    /// With these parameters.
    #[must_use]
    pub const fn parameters(self, parameters: &'static [Parameter]) -> Self {
        Algorithm { parameters, ..self }
    }

    /// With other rows of A than [`Problem::shard`].
    #[must_use]
    pub const fn rows(self, rows: Rows) -> Self {
        Algorithm {
            rows: Some(rows),
            ..self
        }
    }

    /// With options that give the same plans as others.
    #[must_use]
    pub const fn redundant(self, redundant: fn(&Options) -> bool) -> Self {
        Algorithm {
            redundant: Some(redundant),
            ..self
        }
    }

    /// With options for which it [is batch-invariant](Configuration::is_batch_invariant).
    #[must_use]
    pub const fn batch_invariant(self, batch_invariant: fn(&Options) -> bool) -> Self {
        Algorithm {
            batch_invariant,
            ..self
        }
    }
}

/// Two algorithms are the same if they have the same name.
impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The algorithms of each operation.
const REGISTRY: &[&[Algorithm]] = &[
    all_gather_matmul::ALGORITHMS,
    column_parallel_linear::ALGORITHMS,
    matmul_overlapping_all_gather::ALGORITHMS,
    matmul_reduce_scatter::ALGORITHMS,
    matmul_all_reduce::ALGORITHMS,
    row_parallel_linear::ALGORITHMS,
    row_parallel_linear_norm::ALGORITHMS,
    linear_reduce_scatter::ALGORITHMS,
];

/// Every algorithm, by operation.
pub fn algorithms() -> impl Iterator<Item = &'static Algorithm> {
    REGISTRY.iter().copied().flatten()
}

/// The seven algorithms of nvFuser's table, in its order.
pub fn table() -> Vec<Configuration> {
    let seven = &all_gather_matmul::ALGORITHMS[..all_gather_matmul::TABLE];
    seven.iter().map(Configuration::with_defaults).collect()
}

/// Every algorithm with its defaults, and with each of its parameters varied.
pub fn every() -> Vec<Configuration> {
    algorithms().flat_map(Configuration::variations).collect()
}

/// All configurations worth trying for an operation.
pub fn candidates(operation: Operation) -> Vec<Configuration> {
    algorithms()
        .filter(|algorithm| algorithm.operation == operation)
        .flat_map(Configuration::combinations)
        .collect()
}

/// The same in a job of so many nodes: what can span nodes spans these.
pub fn candidates_over(operation: Operation, nodes: usize) -> Vec<Configuration> {
    let mut all = candidates(operation);
    if nodes > 1 {
        let over = all.into_iter().map(|candidate| candidate.over_nodes(nodes));
        all = Vec::new();
        over.for_each(|candidate| {
            if !all.contains(&candidate) {
                all.push(candidate);
            }
        });
    }
    all
}

/// The algorithm of this name, followed by the parameters that differ from their defaults:
/// `pushChunks:chunks=4`.
///
/// # Errors [`PlanError::UnknownAlgorithm`], with the known names; [`PlanError::UnknownOption`], with the
/// parameters and their values.
pub fn find(name: &str) -> Result<Configuration, PlanError> {
    let mut parts = name.split(':');
    let base = former::current(parts.next().unwrap_or_default());
    let algorithm = algorithms()
        .find(|algorithm| algorithm.name == base)
        .ok_or_else(|| PlanError::UnknownAlgorithm {
            name: base.to_owned(),
            known: algorithms().map(|a| a.name.to_owned()).collect(),
        })?;
    parts.try_fold(
        Configuration::with_defaults(algorithm),
        |configuration, part| {
            configuration
                .with(part)
                .ok_or_else(|| PlanError::UnknownOption {
                    algorithm: base.to_owned(),
                    option: part.to_owned(),
                    known: algorithm.parameters.iter().map(|p| p.to_string()).collect(),
                })
        },
    )
}
