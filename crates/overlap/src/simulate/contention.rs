//! What concurrent work costs beyond a fair share: the capacities of what is shared.

use super::cost::Cost;
use super::machine::Machine;
use super::sharing::{Loads, Resource};
use std::collections::BTreeSet;

/// What runs on one GPU and its links at a moment.
#[derive(Clone, Debug, Default)]
struct Load {
    /// Peers with which its copy engines move data.
    peers: BTreeSet<usize>,
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
