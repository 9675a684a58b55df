//! What GEMMs draw, and how fast those that find others on the SMs, or no power, go on.

use super::Engine;
use crate::check::program::NodeId;
use crate::simulate::machine::Machine;
use crate::simulate::sharing::{InTurn, Resource};

/// The power of its rate that the power which a GEMM draws goes with: that of a circuit goes with the clock
/// and the square of the voltage, which falls with the clock, but less.
const POWER_OF_RATE: f64 = 2.5;

/// Steps in which the power of a GPU falls with its reserve.
const STEPS: f64 = 16.0;

/// The speed above which most blocks of a step have their places, which they keep.
pub(super) const PLACED: f64 = 0.5;

/// The energy that a GPU may draw above what its power sustains, in µs of all SMs multiplying.
pub(super) fn most_reserve(machine: &Machine) -> f64 {
    machine.gemm.boost_us * (1.0 - sustained(machine))
}

/// The power that a GPU sustains, as a part of what it draws where all SMs multiply at full rate.
pub(super) fn sustained(machine: &Machine) -> f64 {
    machine.gemm.throttled.powf(POWER_OF_RATE)
}

/// The step of a GPU with this reserve, 0 where nothing is left.
pub(super) fn step_of(reserve: f64, machine: &Machine) -> usize {
    let left = reserve / most_reserve(machine) * STEPS;
    // At its end a step is over.
    (left - 1e-9).ceil().clamp(0.0, STEPS) as usize
}

/// The reserve at which the step of this one is over.
pub(super) fn end_of_step(reserve: f64, machine: &Machine) -> f64 {
    let step = step_of(reserve, machine);
    most_reserve(machine) * step.saturating_sub(1) as f64 / STEPS
}

/// The power that a GPU has at this step, as a part of what it draws where all SMs multiply at full rate. It
/// falls from all of it to what is sustained like the reserve, so that the rate of long GEMMs falls
/// gradually: clocks are lowered as the power of the last milliseconds comes near its limit.
fn available(step: usize, machine: &Machine) -> f64 {
    let sustained = sustained(machine);
    sustained + (1.0 - sustained) * step as f64 / STEPS
}

impl Engine<'_, '_> {
    /// Slows GEMMs, whose blocks come in rounds over the SMs that others leave them, and from which copy
    /// engines take power and memory; and throttles them to the power that the GPU has. Slows collectives by
    /// the SMs that GEMMs hold.
    /// Returns the power that each GPU draws, 1 where all SMs multiply.
    pub(super) fn draw(&self, jobs: &[InTurn<'_>], speeds: &mut [f64]) -> Vec<f64> {
        let power_of = |&left| available(step_of(left, self.machine), self.machine);
        let available: Vec<f64> = self.reserve.iter().map(power_of).collect();
        let steps: Vec<(NodeId, usize)> = self
            .running
            .ids()
            .map(|id| (id, self.program.nodes[id].rank))
            .collect();
        let held: Vec<f64> = jobs
            .iter()
            .zip(&steps)
            .map(|(job, (_, rank))| {
                let sms = |&&(resource, _): &&(Resource, f64)| resource == Resource::Sms(*rank);
                job.loads.iter().find(sms).map_or(0.0, |&(_, load)| load)
            })
            .collect();
        let mut power = vec![0.0; self.reserve.len()];
        for (i, (id, rank)) in steps.iter().enumerate() {
            if self.costs[*id].gemm {
                // One that transfers slow draws no less, for they draw power too.
                let speed = if speeds[i] > PLACED { 1.0 } else { speeds[i] };
                power[*rank] = f64::min(power[*rank] + held[i] * speed, 1.0);
            }
        }
        let before = speeds.to_vec();
        let copied = self.copied(jobs, speeds);
        let taken = 1.0 - self.machine.gemm.during_transfers;
        for (i, (id, rank)) in steps.iter().enumerate() {
            let cost = &self.costs[*id];
            let held_by = |which: &dyn Fn(usize) -> bool| -> f64 {
                let theirs = (0..steps.len()).filter(|&j| steps[j].1 == *rank && which(j));
                theirs.map(|j| held[j] * before[j]).sum()
            };
            if !cost.gemm {
                let gemms = held_by(&|j| self.costs[steps[j].0].gemm);
                speeds[i] *= 1.0 - cost.lost_to_gemms * gemms;
                continue;
            }
            let others = held_by(&|j| jobs[j].place < jobs[i].place);
            speeds[i] = (speeds[i] * cost.in_whole_rounds(others)).min(1.0);
            let shares = |&(resource, _): &(Resource, f64)| resource == Resource::Power(*rank);
            if jobs[i].loads.iter().any(shares) {
                speeds[i] *= 1.0 - taken * copied[*rank];
            }
            if power[*rank] > available[*rank] {
                speeds[i] *= (available[*rank] / power[*rank]).powf(1.0 / POWER_OF_RATE);
            }
        }
        for (power, available) in power.iter_mut().zip(available) {
            *power = power.min(available);
        }
        power
    }

    /// The part of each GPU's links, both ways, that copy engines use. GEMMs do not slow these down: copies
    /// of 33 and 67 MB reached 388 GB/s under GEMMs (timelines of broadcasts and reductions).
    fn copied(&self, jobs: &[InTurn<'_>], speeds: &[f64]) -> Vec<f64> {
        let mut copied = vec![0.0; self.reserve.len()];
        for ((id, job), speed) in self.running.ids().zip(jobs).zip(speeds) {
            if self.costs[id].engine.is_none() {
                continue;
            }
            for &(resource, load) in job.loads {
                if let Resource::LinkOut(gpu) | Resource::LinkIn(gpu) = resource {
                    copied[gpu] += load * speed / 2.0;
                }
            }
        }
        copied
    }
}
