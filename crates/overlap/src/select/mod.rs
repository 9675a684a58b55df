//! Choosing a schedule.
//!
//! [`select`] simulates every configuration that is worth a try for an operation, corrects each prediction by
//! what was measured, and ranks them. What was measured for the very problem counts as it stands;
//! measurements of other problems and configurations tell by which factor the model errs here, the more so
//! the nearer they are and the more alike the configurations; where there are none, the model decides. Of
//! those that are expected to be equally fast, within what measurements can tell, the one with the fewest
//! launches stands first.
//!
//! Nothing is run: all ranks that ask with the same figures get the same answer, with no exchange. A
//! [`Selection`] keeps the whole ranking and prints why its first stands first.

mod breakdown;
mod correction;
mod evaluation;
mod explanation;
mod measurements;
mod regression;

use crate::algorithms::{self, Capabilities, Configuration};
use crate::error::PlanError;
use crate::operation::Operation;
use crate::plan::{Plan, Problem};
use crate::simulate::{Machine, SimulateError, simulate_configuration};
use thiserror::Error;

use correction::Correction;

pub use breakdown::Breakdown;
pub use correction::Basis;
pub use evaluation::{Evaluation, evaluate};
pub use measurements::{MalformedMeasurements, Measurement, Measurements};

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is to be computed.
    pub operation: Operation,
    /// On what.
    pub problem: Problem,
    /// By how many ranks.
    pub world: usize,
    /// Figures of the machine.
    pub machine: &'a Machine,
    /// What the machine has.
    pub capabilities: Capabilities,
    /// What was measured on it; may be empty.
    pub measurements: &'a Measurements,
}

/// Why nothing could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectError {
    /// No algorithm of the operation can run on the machine. The reasons say what each lacks, or why its
    /// plans cannot be built or simulated.
    #[error("no algorithm of {operation} can run on `{machine}`{}", match reasons.is_empty() {
        true => String::new(),
        false => format!(": {}", reasons.join("; ")),
    })]
    NothingRuns {
        /// The operation.
        operation: Operation,
        /// The machine.
        machine: String,
        /// Why each was left out.
        reasons: Vec<String>,
    },
    /// A plan of more ranks than a part of it serves.
    #[error("{what} serves {most} ranks at most")]
    TooManyRanks {
        /// The kernel or the collective.
        what: String,
        /// How many it serves.
        most: usize,
    },
    /// A problem of which no plan can be built.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A machine on which no plan of so many ranks can be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// One configuration with what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The configuration.
    pub configuration: Configuration,
    /// The model's prediction, µs.
    pub predicted_us: f64,
    /// What is expected with all that is known, µs.
    pub expected_us: f64,
    /// On what the expectation rests.
    pub basis: Basis,
    /// The most kernels, GEMMs, reductions and collectives that a rank launches.
    pub launches: usize,
    /// What its critical path consists of, by the model.
    pub breakdown: Breakdown,
}

/// Times that differ by no more than this part of them are equal: the median of fifty calls is no better
/// known.
const EQUAL: f64 = 0.005;

/// All that can run, the fastest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    operation: Operation,
    problem: Problem,
    world: usize,
    machine: String,
    limit: Limit,
    ranking: Vec<Choice>,
    left_out: Vec<String>,
}

/// What no schedule on the machine can beat, by the model, µs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit {
    gemm_us: f64,
    transfer_us: f64,
}

impl Limit {
    fn us(self) -> f64 {
        self.gemm_us.max(self.transfer_us)
    }
}

impl Selection {
    /// The fastest; of several that are within half a percent of it, the one with the fewest launches.
    pub fn best(&self) -> &Choice {
        &self.ranking[0]
    }

    /// All that can run, first the best, then the fastest first; never empty.
    pub fn ranking(&self) -> &[Choice] {
        &self.ranking
    }

    /// What cannot run on the machine, cannot be built or cannot be simulated, each with the reason.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// What no schedule on the machine can beat, by the model, µs: the longer of the GEMM alone and of the
    /// bytes that must come into a rank, at the rate of a copy engine.
    pub fn limit_us(&self) -> f64 {
        self.limit.us()
    }
}

/// Ranks all configurations of an operation. One whose plans cannot be built or simulated, share memory
/// between nodes of the machine, or have a part that serves fewer ranks, is left out, with the reason.
///
/// # Errors
/// An empty problem, more ranks than the machine has GPUs, an operation of which nothing can run there.
pub fn select(request: &Request<'_>) -> Result<Selection, SelectError> {
    let nodes = request.machine.nodes_of(request.world);
    select_among(
        request,
        algorithms::candidates_over(request.operation, nodes),
    )
}

/// Ranks these configurations of an operation.
///
/// # Errors
/// As [`select`].
pub fn select_among(
    request: &Request<'_>,
    candidates: Vec<Configuration>,
) -> Result<Selection, SelectError> {
    let Request {
        operation,
        problem,
        world,
        machine,
        ..
    } = *request;
    // What no candidate could help is an error; what one candidate fails at is its own reason.
    problem.validate(0, world)?;
    machine.admits(world)?;
    let correction = Correction::of(request);
    let (mut ranking, mut left_out) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let missing = candidate.needs().missing_on(request.capabilities);
        if !missing.is_empty() {
            left_out.push(format!("{candidate} needs {}", lacks(missing)));
            continue;
        }
        match choice(request, &correction, candidate.clone()) {
            Ok(choice) => ranking.push(choice),
            Err(error) => left_out.push(format!("{candidate}: {error}")),
        }
    }
    if ranking.is_empty() {
        return Err(SelectError::NothingRuns {
            operation,
            machine: machine.name.clone(),
            reasons: left_out,
        });
    }
    // A stable sort: of equals the one that stands first in the registry, whose parameters are the default
    // ones.
    ranking.sort_by(|a, b| a.expected_us.total_cmp(&b.expected_us));
    let equal = (1.0 + EQUAL) * ranking[0].expected_us;
    let fastest = ranking.iter().take_while(|c| c.expected_us <= equal);
    let fewest = fastest.enumerate().min_by_key(|(_, c)| c.launches);
    if let Some((best, _)) = fewest {
        ranking[..=best].rotate_right(1);
    }
    let (gemm, _) = machine.gemm_time(operation.gemm(world, &problem), problem.dtype);
    let bytes = operation.bytes_in(world, &problem);
    Ok(Selection {
        operation,
        problem,
        world,
        machine: machine.name.clone(),
        limit: Limit {
            gemm_us: gemm,
            transfer_us: bytes / (machine.link.copy_engine_gbs * 1e3),
        },
        ranking,
        left_out,
    })
}

fn choice(
    request: &Request<'_>,
    correction: &Correction<'_>,
    configuration: Configuration,
) -> Result<Choice, SelectError> {
    let first = configuration.plan(0, request.world, &request.problem)?;
    if first.shares_memory() {
        request
            .machine
            .holds_nodes_of(first.node_size, request.world)?;
    }
    if let Some((what, most)) = first.overcrowded() {
        return Err(SelectError::TooManyRanks { what, most });
    }
    let problem = (request.world, &request.problem);
    let (plans, timeline) =
        simulate_configuration::<SelectError>(&configuration, problem, request.machine, 1)?;
    let predicted_us = timeline.total();
    let basis = correction.basis(&configuration, request);
    Ok(Choice {
        expected_us: basis.expected(predicted_us),
        breakdown: Breakdown::of(&timeline, &plans),
        launches: plans.iter().map(Plan::launches).max().unwrap_or(0),
        configuration,
        predicted_us,
        basis,
    })
}

fn lacks(missing: Capabilities) -> &'static str {
    match (missing.multicast, missing.sm90) {
        (true, true) => "multicast and compute capability 9.0",
        (true, false) => "multicast",
        _ => "compute capability 9.0",
    }
}
