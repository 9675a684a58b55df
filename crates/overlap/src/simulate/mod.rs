//! Predicting schedules.
//!
//! [`simulate`] runs the plans of all ranks on a [`Machine`], which is nothing but figures, and gives the
//! [`Timeline`] that they predict. It steps through the same unrolled program that
//! [`check`](mod@crate::check) proves: streams in order, events, flags that only grow, collectives that meet,
//! lanes concurrently. So plans that *check* passes end here too; what would not end is
//! [`SimulateError::Deadlock`].
//!
//! A step first takes a fixed time (launch, start-up of a copy, a signal's one-way latency), then it runs.
//! While it runs it shares SMs, memory, links and copy engines with whatever else runs; the shares are
//! max-min fair and are made anew whenever something begins or ends. Nothing is random: the same plans on the
//! same machine give the same timeline.
//!
//! # What runs concurrently
//!
//! A GEMM takes whole waves of tiles, one tile on each SM, or as long as memory needs. In its last wave the
//! SMs without a tile are free. What holds most of the SMs that it needs keeps them. Of those that are free,
//! what began first gets them first, urgent streams before others. A GEMM that finds less than two fifths of
//! what it needs gains nothing from them. So GEMMs in chunks fill each other's last waves on several streams,
//! and not on one; and reductions and collectives that take SMs wait for the preceding GEMM. The blocks of a
//! GEMM that find no SM, since a collective or another GEMM has it, begin when its first ones end, and take
//! as long. A GEMM after which an event is recorded does not overlap with the launch of the next. Signals and
//! waits begin late during GEMMs, the more so the more SMs these hold. One that comes after a GEMM whose
//! tiles fill the SMs finds a place in its last wave, unless it is more urgent. One that is launched at the
//! same moment as such a GEMM finds none before in some calls, urgent or not: it begins later by what that
//! makes on average, of the slowest rank.
//!
//! Of links and memory all have a fair share. Beyond that, what was measured to suffer does: copies of one
//! GPU to several peers, pulls of all GPUs at once, copy engines and SMs on one link, GEMMs during transfers,
//! and transfers by SMs, not those by copy engines, during GEMMs; NCCL more than others. What copy engines
//! pull from several peers comes from one after the other, and more slowly than from one alone unless a GEMM
//! follows each pull. GEMMs slow down gradually as a GPU uses up its reserve of energy, down to the part of
//! their rate that power sustains; power falls faster than the clock does. Waves that leave SMs idle draw
//! less, and in idle times the reserve fills again.
//!
//! Each of these has one figure in the [`Machine`] at most, and the machine's file says what it was measured
//! by, or that it was fitted. The README of this crate has the errors against what was recorded, in the
//! median, at the 95th percentile and at worst.
//!
//! # What it leaves out
//!
//! Ranks that drift apart, so that what they push to different peers meets on a link, as in the results of
//! all-reduces on four GPUs: once a signal of one rank was late, two ranks pushed to one for 100 µs. GEMMs of
//! several streams that take longer together than their tiles do, as those of K = 16384. Which of several
//! GEMM kernels the library takes, beyond its tile and its cuts of K; halves of tiles in plain GEMMs of the
//! hand-written kernel. Why reductions over nodes gain nothing from eight chunks. Gathers of a megabyte by
//! the threads of one kernel from several peers, which reach less of the link than larger ones. What pulls
//! suffer among more or fewer GPUs than were measured, and latencies of collectives that grow with the ranks.
//! All ranks begin at the same moment, and no rank is slower than another.

mod collectives;
mod contention;
mod cost;
mod engine;
mod error;
mod machine;
mod nodes;
mod sharing;
mod write;

pub use collectives::{CollectiveTimes, Collectives};
pub(crate) use cost::micros;
pub use cost::{Cost, Costs};
pub use error::SimulateError;
pub(crate) use machine::Waves;
pub use machine::{Gemm, Gpu, Latency, Link, Machine, Network, Rates, Tile};
pub use nodes::{first_node, simulate_configuration};

use crate::check::objections;
use crate::check::program::{Program, steps_of};
use crate::plan::Plan;
use crate::timeline::Timeline;

/// The timeline of `calls` calls back to back, at least one, of the plans of all ranks on `machine`.
///
/// The plans may come in any order of ranks.
///
/// # Errors
/// A figure of the machine that is none, more ranks than GPUs, plans that are wrong by themselves or do not
/// belong together, more than [`Plan::MOST_STEPS`] steps, a deadlock.
pub fn simulate(
    plans: &[Plan],
    machine: &Machine,
    calls: usize,
) -> Result<Timeline, SimulateError> {
    machine.admits(plans.len())?;
    if let Some(first) = objections(plans).first() {
        return Err(SimulateError::Unsound {
            what: first.to_string(),
        });
    }
    let calls = calls.max(1);
    let (steps, most) = (steps_of(plans, calls), Plan::MOST_STEPS);
    if steps > most {
        return Err(SimulateError::TooManySteps { steps, most });
    }
    let mut by_rank: Vec<&Plan> = plans.iter().collect();
    by_rank.sort_by_key(|plan| plan.rank);
    let program = Program::unroll(by_rank, calls);
    engine::run(&program, machine)
}
