//! What GEMMs draw, and how fast those that find others on the SMs, or no power, go on.

use super::Engine;
use crate::check::program::NodeId;
use crate::simulate::machine::Machine;
use crate::simulate::sharing::{InTurn, Resource};

/// The speed above which most blocks of a step have their places, which they keep.
pub(super) const PLACED: f64 = 0.5;

/// The energy that a GPU may draw above what its power sustains, in µs of all SMs multiplying: what lasts for
/// a boost.
pub(super) fn most_reserve(machine: &Machine) -> f64 {
    machine.gemm.boost_us * (1.0 - machine.gemm.throttled)
}

impl Engine<'_, '_> {
    /// Slows GEMMs, whose tiles come in whole waves over the SMs that others leave them, and throttles those
    /// of GPUs without a reserve to what power sustains. Returns the power that each GPU draws, 1 where all
    /// SMs multiply.
    pub(super) fn draw(&self, jobs: &[InTurn<'_>], speeds: &mut [f64]) -> Vec<f64> {
        let sustained = self.machine.gemm.throttled;
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
        for (i, (id, rank)) in steps.iter().enumerate() {
            let cost = &self.costs[*id];
            if !cost.gemm {
                continue;
            }
            let others = (0..steps.len()).filter(|&j| {
                let (other, place) = (steps[j], jobs[j].place);
                other.1 == *rank && place < jobs[i].place && !self.costs[other.0].gemm
            });
            let others = others.map(|j| held[j] * before[j]).sum();
            speeds[i] = (speeds[i] * cost.in_whole_waves(others)).min(1.0);
            if self.reserve[*rank] <= 0.0 && power[*rank] > sustained {
                speeds[i] *= sustained / power[*rank];
            }
        }
        for (power, reserve) in power.iter_mut().zip(&self.reserve) {
            if *reserve <= 0.0 {
                *power = power.min(sustained);
            }
        }
        power
    }
}
