//! A configuration for every M up to a maximum, with proofs.
//!
//! A [`Schedule`] is an algorithm's configuration, a world, and the largest problem. For each M up to that of
//! the problem it gives the plans of all ranks, changed in two respects:
//!
//! - Operands are the caller's own memory. Where an algorithm has an operand in memory that peers reach, and
//!   the caller's is local, the plan *stages* it: it copies an input to `NAME.staged` at the start and an
//!   output from there at the end, unless the kernel that alone uses it takes or leaves it in local memory
//!   itself ([`Kernel::copying`](crate::kernels::Kernel::copying)). The copies are operations of the plan, or
//!   effects of its kernel, so *show*, *check* and *simulate* see them. A caller that holds the operand in
//!   symmetric memory [says so](Schedule::symmetric), and nothing is copied.
//! - Calls are [closed](Checked::is_closed), so that calls of any schedules and any M follow each other on
//!   one arena of staging memory. Many algorithms are as they are; for others credits become grants or
//!   acknowledgements, or the call begins with a barrier ([`Closing`]).
//!
//! # Every M is proved
//!
//! [`Schedule::checked`] gives plans that were proved. Plans for different M that differ only in sizes have
//! one proof, which the process remembers: a *class* is what is left of the plans of all ranks when each
//! endpoint of a range is replaced by its place among all endpoints on that copy of that buffer. The proof
//! compares endpoints and does nothing else with them, so plans of one class have the same proof. Whether the
//! plans are sound by themselves (shapes, bounds) is looked at anew for every M. The first M of a class costs
//! one proof for each change that is tried, some milliseconds each; another M costs less than one.
//!
//! All of this is a function of configuration, world and problem, so all ranks get the same plans.

mod class;
mod closing;
mod error;
mod staging;

use crate::algorithms::Configuration;
use crate::check::{Checked, DEFAULT_CALLS, check_closed, objections};
use crate::operation::Operand;
#[cfg(doc)]
use crate::plan::Provider;
use crate::plan::{Plan, Problem};
use class::{Class, Known};
use std::collections::BTreeSet;
use std::sync::Arc;

pub use closing::Closing;
use closing::Copies;
pub use error::ScheduleError;

/// A configuration for every M up to a maximum: see the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    configuration: Configuration,
    world: usize,
    problem: Problem,
    symmetric: BTreeSet<&'static str>,
    constant_b: bool,
    fastest_gemms: bool,
}

/// Plans of all ranks with staging, and how many copies each has.
struct Staged {
    plans: Vec<Plan>,
    copies: Vec<Copies>,
}

impl Schedule {
    /// The schedule for every M up to `problem.m`. All operands are the caller's local memory.
    ///
    /// # Errors
    /// The plans for the maximum cannot be built: see [`Configuration::plans`].
    pub fn new(
        configuration: Configuration,
        world: usize,
        problem: Problem,
    ) -> Result<Self, ScheduleError> {
        configuration.plans(world, &problem)?;
        Ok(Schedule {
            configuration,
            world,
            problem,
            symmetric: BTreeSet::new(),
            constant_b: false,
            fastest_gemms: false,
        })
    }

    /// The same, with an operand that the caller holds in symmetric memory on all ranks: of the extent that
    /// the plan's buffer of this name has.
    ///
    /// It is then read or written in place where the algorithm has it in symmetric memory. Elsewhere it makes
    /// no difference.
    ///
    /// # Errors
    /// The operation has no operand of this name.
    pub fn symmetric(mut self, operand: &str) -> Result<Self, ScheduleError> {
        let operands = self.configuration.operands(0, self.world, &self.problem);
        let known = operands.iter().map(|operand| operand.buffer);
        match known.clone().find(|&known| known == operand) {
            Some(operand) => {
                self.symmetric.insert(operand);
                Ok(self)
            }
            None => Err(ScheduleError::UnknownOperand {
                schedule: self.configuration.name(),
                operand: operand.into(),
                known: known.map(str::to_owned).collect(),
            }),
        }
    }

    /// The same, with GEMMs whose bits of a row of C depend on that row of A and on B alone: not on M, the
    /// row's place or the tile. All plain GEMMs of f16 and bf16 are then of [`Provider::Sm90`], like those of
    /// the fused kernels, so that such schedules of one operation agree, too, if they reduce in the order of
    /// ranks; NCCL's reductions do not.
    #[must_use]
    pub fn batch_invariant(self) -> Self {
        Schedule {
            problem: self.problem.with_batch_invariance(true),
            ..self
        }
    }

    /// The same, where B is [constant](warpweave_gemm::GemmProblem::constant_b), as weights are: nothing that
    /// a call is enqueued after writes it while it may still run.
    #[must_use]
    pub fn with_constant_b(self) -> Self {
        Schedule {
            constant_b: true,
            ..self
        }
    }

    /// Whether B [is constant](Schedule::with_constant_b).
    pub fn has_constant_b(&self) -> bool {
        self.constant_b
    }

    /// The same, where plain GEMMs of few rows that the plan gives to cuBLASLt are by the hand-written kernel
    /// if that runs.
    #[must_use]
    pub fn with_fastest_gemms(self) -> Self {
        Schedule {
            fastest_gemms: true,
            ..self
        }
    }

    /// Whether it takes [the fastest GEMMs](Schedule::with_fastest_gemms).
    pub fn has_fastest_gemms(&self) -> bool {
        self.fastest_gemms
    }

    /// Whether its GEMMs are [batch-invariant](Schedule::batch_invariant).
    pub fn is_batch_invariant(&self) -> bool {
        self.problem.batch_invariant
    }

    /// The configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The largest problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Whether the caller holds this operand in symmetric memory.
    pub fn is_symmetric(&self, operand: &str) -> bool {
        self.symmetric.contains(operand)
    }

    /// The problem with `m` rows.
    ///
    /// # Errors
    /// `m` is 0 or more than the maximum.
    pub fn problem_of(&self, m: usize) -> Result<Problem, ScheduleError> {
        match (1..=self.problem.m).contains(&m) {
            true => Ok(Problem { m, ..self.problem }),
            false => Err(ScheduleError::OutOfRange {
                schedule: self.configuration.name(),
                m,
                most: self.problem.m,
            }),
        }
    }

    /// The caller's operands of a rank at M = `m`.
    ///
    /// # Errors
    /// `m` is 0 or more than the maximum.
    pub fn operands(&self, rank: usize, m: usize) -> Result<Vec<Operand>, ScheduleError> {
        let problem = self.problem_of(m)?;
        Ok(self.configuration.operands(rank, self.world, &problem))
    }

    /// The plans of all ranks at M = `m`: those of [`Schedule::checked`].
    ///
    /// # Errors
    /// As [`Schedule::checked`].
    pub fn plans(&self, m: usize) -> Result<Vec<Plan>, ScheduleError> {
        Ok(self.checked(m)?.plans().to_vec())
    }

    /// The plans of all ranks at M = `m`, proved and [closed](Checked::is_closed).
    ///
    /// The proof is run for the first M of a class; for others it is looked up.
    ///
    /// # Errors
    /// `m` is 0 or more than the maximum, the plans cannot be built, a weight would have to be staged, or
    /// there is no proof.
    pub fn checked(&self, m: usize) -> Result<Arc<Checked>, ScheduleError> {
        let staged = self.staged(m)?;
        let class = Class::of(&staged.plans, &staged.copies);
        let Some(Known { closing, proof }) = class::known(&class) else {
            let (closing, checked) = self.prove(m, &staged)?;
            let proof = checked.proof();
            class::remember(class, Known { closing, proof });
            return Ok(Arc::new(checked));
        };
        let mut plans = staged.plans;
        closing.apply(&mut plans, &staged.copies);
        // What depends on sizes: see `Class`.
        match objections(&plans).is_empty() {
            true => Ok(Arc::new(Checked::known(plans, proof))),
            false => Err(self.unproved(m, &plans)),
        }
    }

    /// What closes the calls at M = `m`.
    ///
    /// # Errors
    /// As [`Schedule::checked`].
    pub fn closing(&self, m: usize) -> Result<Closing, ScheduleError> {
        let staged = self.staged(m)?;
        match class::known(&Class::of(&staged.plans, &staged.copies)) {
            Some(known) => Ok(known.closing),
            None => Ok(self.prove(m, &staged)?.0),
        }
    }

    /// The algorithm's plans with staging.
    fn staged(&self, m: usize) -> Result<Staged, ScheduleError> {
        let problem = self.problem_of(m)?;
        let mut plans = self.configuration.plans(self.world, &problem)?;
        let symmetric: Vec<&str> = self.symmetric.iter().copied().collect();
        let stage = |plan: &mut Plan| {
            let operands = self.configuration.operands(plan.rank, self.world, &problem);
            staging::stage(plan, &operands, &symmetric)
        };
        let copies = plans.iter_mut().map(stage).collect::<Result<_, _>>()?;
        Ok(Staged { plans, copies })
    }

    /// The first change with which the calls are closed.
    fn prove(&self, m: usize, staged: &Staged) -> Result<(Closing, Checked), ScheduleError> {
        let mut last = Vec::new();
        for closing in Closing::ALL {
            if !closing.is_possible(&staged.plans) {
                continue;
            }
            last = staged.closed_by(closing);
            if let Some(checked) = Checked::prove_closed(last.clone()) {
                return Ok((closing, checked));
            }
        }
        Err(self.unproved(m, &last))
    }

    fn unproved(&self, m: usize, plans: &[Plan]) -> ScheduleError {
        ScheduleError::Unproved {
            schedule: self.configuration.name(),
            m,
            report: Box::new(check_closed(plans, DEFAULT_CALLS)),
        }
    }
}

impl Staged {
    fn closed_by(&self, closing: Closing) -> Vec<Plan> {
        let mut plans = self.plans.clone();
        closing.apply(&mut plans, &self.copies);
        plans
    }
}
