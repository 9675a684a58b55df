//! The error type of this crate.

use thiserror::Error;
use warpweave_gemm::Scaling;

/// Why a plan could not be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No algorithm of this name is registered.
    #[error("there is no algorithm `{name}`; known are: {}", known.join(", "))]
    UnknownAlgorithm {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// The algorithm has no such parameter, or the parameter no such value.
    #[error("algorithm `{algorithm}` takes no `{option}`; {}", match known.is_empty() {
        true => "there is nothing to choose".to_owned(),
        false => format!("it takes {}", known.join(", ")),
    })]
    UnknownOption {
        /// The algorithm.
        algorithm: String,
        /// What was asked for.
        option: String,
        /// What there is to choose.
        known: Vec<String>,
    },
    /// A rank that does not take part.
    #[error("rank {rank} is not one of the {world} ranks 0..{world}")]
    RankOutsideWorld {
        /// The rank.
        rank: usize,
        /// How many ranks there are.
        world: usize,
    },
    /// A problem with nothing to compute.
    #[error("{size} is 0: the problem needs M, N and K of at least 1")]
    EmptyProblem {
        /// Which size.
        size: &'static str,
    },
    /// Operands of e4m3 for an algorithm that does not take them, or not with these scales.
    #[error(
        "`{name}` does not take operands of e4m3 with scales by {}: all-gather + matmul and its layer do by \
         copy engines and collectives, and so does matmul + reduction; their fused kernels do with scales by \
         tensor or row",
        .scaling.name()
    )]
    NarrowOperands {
        /// The algorithm, with the parameters that differ from their defaults.
        name: String,
        /// What has a scale.
        scaling: Scaling,
    },
    /// Columns of a SwiGLU that are not whole groups of gate and up.
    #[error(
        "N = {n} must be a multiple of {group}, of whose columns half are the gate's and half up's"
    )]
    PartOfAGate {
        /// Columns.
        n: usize,
        /// Columns of a group.
        group: usize,
    },
    /// An activation for an algorithm that has none.
    #[error("`{name}` has no activation: the column-parallel layer does")]
    Activation {
        /// The algorithm, with the parameters that differ from their defaults.
        name: String,
    },
    /// A size, or a number of ranks, beyond what kernels and plans count.
    #[error("{size} is {value}: {most} at most")]
    TooLarge {
        /// Which size.
        size: &'static str,
        /// What it is.
        value: usize,
        /// The largest that is taken.
        most: usize,
    },
    /// A schedule of more steps than a plan, or the plans of all ranks, may have.
    #[error(
        "`{plan}` has {steps} steps in a call, {most} at most: take fewer chunks, groups of more rows, \
         or fewer ranks"
    )]
    TooManySteps {
        /// Name of the plan.
        plan: String,
        /// Steps of a call, of one rank or of all; about so many where they were not built.
        steps: usize,
        /// The most there may be.
        most: usize,
    },
    /// The builder was given something that no plan can hold.
    #[error("plan `{plan}`, rank {rank}: {what}")]
    Malformed {
        /// Name of the plan.
        plan: String,
        /// The rank it was built for.
        rank: usize,
        /// What is wrong, and where.
        what: String,
    },
}
