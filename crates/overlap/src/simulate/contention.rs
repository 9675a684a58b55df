//! What running side by side costs beyond a fair share: the capacities of what is shared.

use super::cost::Cost;
use super::machine::Machine;
use super::sharing::{Loads, Resource};
use std::collections::BTreeSet;

/// What runs on one GPU and its links at a moment.
#[derive(Clone, Debug, Default)]
struct Load {
    /// Peers with which its copy engines move data.
    peers: BTreeSet<usize>,
    /// Ranks from which it pulls by copy engine.
    pulls: BTreeSet<usize>,
    /// Whether a peer pulls from it by copy engine.
    serves: bool,
    /// Whether copy engines use its links, its own or a peer's.
    engines: bool,
    /// Whether loads and stores of SMs do.
    threads: bool,
    /// SMs that its GEMMs would hold.
    gemms: f64,
}

/// What runs on all GPUs at a moment.
pub(super) struct Contention<'a> {
    machine: &'a Machine,
    loads: Vec<Load>,
}

impl<'a> Contention<'a> {
    /// `running` on so many GPUs: the rank of each step that runs, and its cost.
    pub(super) fn of<'c>(
        machine: &'a Machine,
        gpus: usize,
        running: impl Iterator<Item = (usize, &'c Cost, &'c Loads)>,
    ) -> Self {
        let mut loads = vec![Load::default(); gpus];
        for (rank, cost, taken) in running {
            if let Some(peer) = cost.engine.filter(|&peer| peer != rank) {
                loads[rank].peers.insert(peer);
                if cost.pulls {
                    loads[rank].pulls.insert(peer);
                    loads[peer].serves = true;
                }
            }
            for (resource, load) in taken {
                match *resource {
                    Resource::LinkOut(gpu) | Resource::LinkIn(gpu) => {
                        loads[gpu].engines |= cost.engine.is_some();
                        loads[gpu].threads |= cost.engine.is_none();
                    }
                    Resource::Sms(gpu) if cost.gemm => loads[gpu].gemms += load,
                    _ => {}
                }
            }
        }
        Contention { machine, loads }
    }

    /// How much there is of a resource, 1 for what nothing slows down.
    pub(super) fn capacity(&self, resource: Resource) -> f64 {
        let link = &self.machine.link;
        match resource {
            Resource::Engines(gpu) if self.loads[gpu].peers.len() > 1 => link.concurrent_copies,
            Resource::Pulls(gpu) if self.loads[gpu].serves => match self.loads[gpu].pulls.len() {
                0 => 1.0,
                // Each byte that comes in is matched by one that goes out.
                1 => 2.0 * link.pulls_gbs / link.copy_engine_gbs,
                _ => 2.0 * link.pulls_streams_gbs / link.copy_engine_gbs,
            },
            Resource::LinkOut(gpu) | Resource::LinkIn(gpu)
                if self.loads[gpu].engines && self.loads[gpu].threads =>
            {
                link.mixed
            }
            // One GEMM alone uses all that it can, also where its waves are not full.
            Resource::Power(gpu) if self.loads[gpu].gemms > 0.0 => self.loads[gpu].gemms.min(1.0),
            _ => 1.0,
        }
    }
}
