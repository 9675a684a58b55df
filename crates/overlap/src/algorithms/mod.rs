//! The registry: every algorithm of this crate by its exact name.

pub mod all_gather_matmul;

use crate::error::PlanError;
use crate::plan::{Plan, Problem};

/// What a machine must have to run an algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// NVLink multicast, opted in to and not refused.
    pub multicast: bool,
    /// A device of compute capability 9.0: TMA and wgmma.
    pub sm90: bool,
}

impl Capabilities {
    /// What `self` asks for and `machine` has not.
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

/// A function that gives the plan of one rank for a problem.
pub type Build = fn(rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError>;

/// One way to solve a problem.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    /// The name in tables, on command lines and in plans.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What it needs on a GPU; the host backend runs all of them.
    pub needs: Capabilities,
    /// Builds the plan of one rank.
    pub build: Build,
}

impl Algorithm {
    /// The plans of all ranks.
    ///
    /// # Errors
    /// As the algorithm's own function: an empty problem, or a world of no ranks.
    pub fn build_all(&self, world: usize, problem: &Problem) -> Result<Vec<Plan>, PlanError> {
        problem.validate(0, world)?;
        (0..world)
            .map(|rank| (self.build)(rank, world, problem))
            .collect()
    }
}

/// The seven algorithms of the tables, in their order.
pub fn all() -> &'static [Algorithm] {
    &every()[..all_gather_matmul::TABLE]
}

/// Every algorithm: the seven, then the pipelines.
pub fn every() -> &'static [Algorithm] {
    all_gather_matmul::ALGORITHMS
}

/// The algorithm of this name, whose number of streams or chunks, if it is not the usual one, is part of it.
///
/// # Errors
/// There is none; the error lists the names there are.
pub fn find(name: &str) -> Result<&'static Algorithm, PlanError> {
    every()
        .iter()
        .find(|a| a.name == name)
        .ok_or_else(|| PlanError::UnknownAlgorithm {
            name: name.to_owned(),
            known: every().iter().map(|a| a.name.to_owned()).collect(),
        })
}
