//! Proving schedules.
//!
//! [`check`] takes the plans of all ranks, unrolls them over calls that follow each other back to back with
//! no host synchronisation, puts the caller's own accesses between the calls, and decides whether in
//! **every** run of the result each pair of conflicting accesses is ordered and each wait ends.
//!
//! How: the unrolled program is a monotone dataflow, so one greedy run executes everything that any run can
//! execute; what is left over is a deadlock. In that run the n-th signal on a flag has value n and each wait
//! knows the one signal that it needs, which gives, with stream order, events, lanes and collectives, the
//! happens-before relation. Two accesses of one copy of one buffer conflict if their boxes overlap and one
//! writes; if neither happens before the other, some run does them in the wrong order, and the report
//! contains such a run.
//!
//! # Why a few calls prove all of them
//!
//! Let *L* be the largest lag. If every flag is signalled as often as it is waited for in a call, and every
//! stream is forked and joined (all of which is checked), a wait of call *i* needs a signal of call *i −
//! lag*. So the edges between calls *i − L … i* are those of earlier calls moved along, save that the first
//! *L* calls have fewer, because their credits are free. Hence
//! - a deadlock shows in the first *L* + 1 calls: waits only look back, and every later call looks back on
//!   the same things;
//! - an order that holds between calls 1 and 2 holds between any call and the next, and by the order of one
//!   rank's calls between any two.
//!
//! Accesses of an alternating buffer conflict with those of every second call alone. So where a plan has one,
//! what is said of calls 1 and 2 is said of calls 1 and 3.
//!
//! Thus max(2, *L* + 1) calls prove any number of them, or one more where buffers alternate, and fewer are
//! never unrolled.
//!
//! # Calls of other schedules
//!
//! That proves any number of calls of the same plans. Calls of other schedules, or at another M, may use the
//! same staging memory in between. [`check_closed`] proves what makes that safe, of each schedule by itself:
//! see [`Checked::is_closed`].
//!
//! # Launches that wait
//!
//! The proof lets every step run that can. A device has a number of SMs, and blocks that wait for peers keep
//! theirs. So two launches of a rank that wait must have an order.

mod access;
mod agreement;
mod checked;
mod closed;
mod coverage;
mod deadlock;
mod order;
pub(crate) mod program;
mod races;
mod report;
mod run;
mod sequences;
mod starvation;
mod steps;
mod structure;

pub use access::AccessKind;
pub use checked::Checked;
pub use program::Site;
pub use report::{Awaited, Blockage, Flag, Report, Schedule, Sequence, Step, Touch, Violation};
pub use structure::{Fault, FaultKind};

pub(crate) use agreement::agreed;
pub(crate) use checked::Proof;
pub(crate) use structure::faults_of;

use crate::plan::{Effect, OpKind, Plan};
use order::HappensBefore;
use program::{Boundary, Program, steps_of};

/// Calls that are unrolled by default.
pub const DEFAULT_CALLS: usize = 3;

/// The most steps, of all ranks and calls, that are proved: for each two of them the proof keeps a bit, 2 GiB
/// in all.
pub const MOST_STEPS: usize = 1 << 17;

/// Proves that the plans of all ranks keep every conflicting access ordered and never deadlock, over `calls`
/// calls back to back and, with them, over any number; or says what is wrong.
///
/// The plans may come in any order of ranks. More calls than asked for are unrolled if the proof needs them.
/// A plan that is wrong by itself, or plans that do not belong together, are reported as such and not
/// unrolled. So are plans of more than [`MOST_STEPS`] steps, as [`Violation::TooManySteps`].
pub fn check(plans: &[Plan], calls: usize) -> Report {
    examine(plans, calls, Boundary::Operands, Extent::All)
}

/// As [`check`], and proves in addition that each call is [closed](Checked::is_closed).
pub fn check_closed(plans: &[Plan], calls: usize) -> Report {
    examine(plans, calls, Boundary::Everything, Extent::All)
}

/// How many races are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// One: whether the plans hold is all that matters.
    First,
    /// All, for a report.
    All,
}

fn examine(plans: &[Plan], calls: usize, boundary: Boundary, extent: Extent) -> Report {
    let mut report = Report {
        name: plans.first().map_or_else(String::new, |p| p.name.clone()),
        world: plans.len(),
        calls: 0,
        steps: 0,
        conflicts: 0,
        violations: objections(plans),
    };
    if !report.holds() {
        return report;
    }
    let mut by_rank: Vec<&Plan> = plans.iter().collect();
    by_rank.sort_by_key(|plan| plan.rank);
    let calls = calls.max(calls_needed(plans));
    let steps = steps_of(plans, calls);
    if steps > MOST_STEPS {
        let most = MOST_STEPS;
        report
            .violations
            .push(Violation::TooManySteps { steps, most });
        return report;
    }
    report.calls = calls;
    report
        .violations
        .extend(agreement::unmatched_signals(&by_rank));
    report
        .violations
        .extend(agreement::mismatched_collectives(&by_rank));

    let program = Program::between(by_rank, report.calls, boundary);
    report.steps = program.nodes.len();
    let run = run::run(&program);
    let order = HappensBefore::of(&run);
    report.violations.extend(deadlock::deadlock(&program, &run));
    report
        .violations
        .extend(sequences::unordered(&program, &run, &order));
    report
        .violations
        .extend(sequences::loose_streams(&program, &order));
    report
        .violations
        .extend(starvation::unordered_waiters(&program, &order));
    if boundary == Boundary::Everything {
        report.violations.extend(closed::unheard(&program, &order));
    }
    let (races, conflicts) = races::races(&program, &order, extent);
    report.conflicts = conflicts;
    report.violations.extend(races);
    report
        .violations
        .extend(coverage::unwritten(&program, &order));
    report
}

/// What keeps the plans from being unrolled: faults of one of them, or that they do not belong together.
pub(crate) fn objections(plans: &[Plan]) -> Vec<Violation> {
    let faults = plans.iter().flat_map(faults_of).map(Violation::Fault);
    faults.chain(agreement::disagreements(plans)).collect()
}

/// The calls without which the argument of this module's documentation does not hold.
fn calls_needed(plans: &[Plan]) -> usize {
    let lag_of = |effect: &Effect| match effect {
        Effect::Wait { lag, .. } => *lag,
        _ => 0,
    };
    let lags = plans.iter().flat_map(|p| &p.ops).map(|op| match &op.kind {
        OpKind::Wait { lag, .. } => *lag,
        OpKind::Kernel { lanes, .. } => lanes.iter().flatten().map(lag_of).max().unwrap_or(0),
        _ => 0,
    });
    let alternates = plans.iter().flat_map(|p| &p.buffers).any(|b| b.alternating);
    (lags.max().unwrap_or(0) as usize + 1).max(2) + usize::from(alternates)
}
