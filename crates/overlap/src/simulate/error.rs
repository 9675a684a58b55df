//! Why plans could not be simulated.

use thiserror::Error;

/// Why plans could not be simulated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// No machine of this name comes with the crate.
    #[error("there is no machine `{name}`; known are: {}", known.join(", "))]
    UnknownMachine {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A text that describes no machine.
    #[error("not the description of a machine: {what}")]
    Malformed {
        /// What is wrong with it.
        what: String,
    },
    /// More ranks than the machine has GPUs.
    #[error("{world} ranks need {world} GPUs, machine `{machine}` has {gpus}")]
    TooFewGpus {
        /// The machine.
        machine: String,
        /// Its GPUs.
        gpus: usize,
        /// The ranks.
        world: usize,
    },
    /// A plan whose ranks share memory between nodes of the machine.
    #[error("its nodes of {size} ranks are not within the machine's, of {gpus_per_node} GPUs")]
    SpansNodes {
        /// Ranks of a node of the plan.
        size: usize,
        /// GPUs of a node of the machine.
        gpus_per_node: usize,
    },
    /// Plans that *check* refuses to unroll.
    #[error("the plans cannot be run: {what}")]
    Unsound {
        /// The first objection.
        what: String,
    },
    /// More steps than are simulated.
    #[error(
        "{steps} steps, {most} at most: simulate fewer chunks, groups of more rows, \
         fewer ranks or fewer calls"
    )]
    TooManySteps {
        /// The steps of all ranks and calls.
        steps: usize,
        /// The most that are simulated.
        most: usize,
    },
    /// One node cannot stand for the others, and all of them have too many steps.
    #[error("no node of them stands for the others: {what}")]
    NodesDiffer {
        /// How they differ.
        what: String,
    },
    /// Steps that wait for what never comes.
    #[error("deadlock after {after_us} µs; what waits for ever: {}", blocked.join("; "))]
    Deadlock {
        /// Whole microseconds of simulated time.
        after_us: u64,
        /// The steps that were reached and did not end.
        blocked: Vec<String>,
    },
}
