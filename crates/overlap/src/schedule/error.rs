//! Why a schedule does not exist, or has no proof.

use crate::check::Report;
use crate::error::PlanError;
use thiserror::Error;

/// Why a schedule does not exist, or not for some M.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The plans could not be built.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// M is 0 or more than the maximum that the schedule was made for.
    #[error("`{schedule}` takes M from 1 to {most}, not {m}")]
    OutOfRange {
        /// Name of the configuration.
        schedule: String,
        /// What was asked for.
        m: usize,
        /// The schedule's maximum.
        most: usize,
    },
    /// The operation has no such operand.
    #[error("`{schedule}` has no operand `{operand}`; it has {}", known.join(", "))]
    UnknownOperand {
        /// Name of the configuration.
        schedule: String,
        /// What was named.
        operand: String,
        /// The operands there are.
        known: Vec<String>,
    },
    /// A weight that peers reach and that the caller holds in local memory: weights are never copied.
    #[error(
        "`{schedule}` needs the weight `{operand}` in symmetric memory: weights are not staged"
    )]
    LocalWeight {
        /// Name of the configuration.
        schedule: String,
        /// The weight.
        operand: String,
    },
    /// The plans for this M do not hold, or their calls cannot be closed.
    #[error("`{schedule}` has no closed plans at M = {m}\n{report}")]
    Unproved {
        /// Name of the configuration.
        schedule: String,
        /// Rows of A and C.
        m: usize,
        /// What is wrong with the plans after the last change that was tried.
        report: Box<Report>,
    },
}
