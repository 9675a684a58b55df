//! Places on SMs: what a GEMM holds of them, and who gets those that are free.

use super::power::PLACED;
use super::{Engine, INSTANT, op_of};
use crate::check::program::NodeId;
use crate::simulate::sharing::{Loads, Resource};
use std::collections::BTreeMap;
use warpweave_symm_mem::Priority;

/// The part of the SMs of which a kernel finds none free.
const FULL: f64 = 0.99;

/// How often a GEMM goes before a signal or a wait that was launched at the same moment.
const OVERTAKEN: f64 = 0.25;

impl Engine<'_, '_> {
    /// What a step takes at full speed while `left` µs of it are left. In the last wave of a GEMM the SMs
    /// without a tile are free.
    pub(super) fn takes(&self, id: NodeId, left: f64) -> Loads {
        let cost = &self.costs[id];
        let is_last = self.is_last_wave(id, left);
        let take = |&(resource, load): &(Resource, f64)| match resource {
            Resource::Sms(_) | Resource::Power(_) if is_last => {
                (resource, load.min(cost.last_wave.sms))
            }
            _ => (resource, load),
        };
        cost.loads.iter().map(take).collect()
    }

    /// Whether it is a GEMM with nothing left but its last wave.
    pub(super) fn is_last_wave(&self, id: NodeId, left: f64) -> bool {
        let cost = &self.costs[id];
        cost.gemm && left <= cost.last_wave.us + INSTANT
    }

    /// How long a step runs at full speed before it ends, or before it takes less.
    pub(super) fn until_change(&self, id: NodeId, left: f64) -> f64 {
        match left - self.costs[id].last_wave.us {
            earlier if earlier > INSTANT => earlier,
            _ => left,
        }
    }

    /// Whether most blocks of a step had their places when it was looked at last: it keeps them.
    pub(super) fn is_placed(&self, id: NodeId) -> bool {
        let found = self.shares.steps.binary_search_by_key(&id, |step| step.0);
        found.is_ok_and(|place| self.shares.speeds[place] > PLACED)
    }

    /// For each step that runs its place in the queue for its GPU's SMs, 0 for the first and for what needs
    /// none.
    pub(super) fn places(&self) -> Vec<usize> {
        let mut queues: BTreeMap<usize, Vec<(bool, bool, f64, NodeId)>> = BTreeMap::new();
        for id in self.running.ids() {
            let rank = self.program.nodes[id].rank;
            let needs = |r: Resource| r == Resource::Sms(rank);
            if self.costs[id].loads.iter().any(|&(r, _)| needs(r)) {
                // Its turn may have come long before what it waited for; the blocks come with the latter.
                let begun = self.start[id].unwrap_or(self.now).max(self.held[id]);
                queues.entry(rank).or_default().push((
                    !self.is_placed(id),
                    !self.is_urgent(id),
                    begun,
                    id,
                ));
            }
        }
        let mut places: BTreeMap<NodeId, usize> = BTreeMap::new();
        for queue in queues.values_mut() {
            // A stable sort: what begins together goes in the order of the plan.
            queue.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)));
            places.extend(queue.iter().enumerate().map(|(at, &(.., id))| (id, at)));
        }
        let of = |id: NodeId| places.get(&id).copied().unwrap_or(0);
        self.running.ids().map(of).collect()
    }

    /// The GEMMs of a GPU that were launched, and what is left of them at full speed, µs.
    fn gemms(&self, rank: usize) -> impl Iterator<Item = (NodeId, f64)> {
        let launched = self.delayed.ids().map(|id| (id, self.costs[id].time));
        let all = self.running.iter().chain(launched);
        all.filter(move |(id, _)| self.costs[*id].gemm && self.program.nodes[*id].rank == rank)
    }

    /// Whether a GEMM fills the SMs of its GPU while so much of it is left.
    fn fills(&self, gemm: NodeId, left: f64) -> bool {
        self.sms_of(gemm, left) > FULL
    }

    /// The part of the SMs that a GEMM holds while so much of it is left.
    fn sms_of(&self, gemm: NodeId, left: f64) -> f64 {
        let sms = Resource::Sms(self.program.nodes[gemm].rank);
        let taken = self.takes(gemm, left).into_iter();
        taken.filter(|load| load.0 == sms).map(|load| load.1).sum()
    }

    /// Whether the one block of a signal or a wait that is an operation of a stream finds no place. Blocks of
    /// a GEMM stay for all of its waves but the last. So who comes after them waits for that wave, unless it
    /// is more urgent: then it takes the place of the first block to leave.
    pub(super) fn is_kept_out(&self, id: NodeId) -> bool {
        if !self.costs[id].handshake || !self.machine.latency.by_kernel {
            return false;
        }
        let rank = self.program.nodes[id].rank;
        let since = self.start[id].unwrap_or(self.now);
        let keeps_out = |gemm: NodeId, left: f64| {
            let began = self.begun(gemm);
            let goes_first = self.is_urgent(id) && !self.is_urgent(gemm);
            self.costs[gemm].last_wave.us > 0.0
                && (began, gemm) < (since, id)
                && self.fills(gemm, left)
                && !goes_first
        };
        self.gemms(rank).any(|(gemm, left)| keeps_out(gemm, left))
    }

    /// A signal or a wait is a kernel of one block, whose turn has come. During GEMMs it begins late, the
    /// more so the more of the SMs they hold, since a free SM takes it at once; and later still where one
    /// that was launched just before it fills the GPU first.
    pub(super) fn place_handshake(&mut self, id: NodeId) {
        let rank = self.program.nodes[id].rank;
        let held: f64 = self
            .gemms(rank)
            .map(|(gemm, left)| self.sms_of(gemm, left))
            .sum();
        let during = self.now + held.min(1.0) * self.machine.latency.during_gemm_us;
        let late = |(gemm, _)| during.max(self.overtaken_until(gemm, self.now));
        if let Some(late) = self.gemms(rank).map(late).max_by(f64::total_cmp) {
            self.held[id] = self.held[id].max(late);
        }
    }

    /// The turn of a GEMM has come: signals and waits of its GPU that were launched just before it may find
    /// no place any more.
    pub(super) fn overtake(&mut self, gemm: NodeId) {
        let rank = self.program.nodes[gemm].rank;
        let overtaken: Vec<(NodeId, f64)> = self
            .delayed
            .ids()
            .filter(|&id| self.costs[id].handshake && self.program.nodes[id].rank == rank)
            .map(|id| (id, self.overtaken_until(gemm, self.begun(id))))
            .collect();
        for (id, until) in overtaken {
            self.delayed.put_off(id, until);
        }
    }

    /// When a signal or a wait that was launched at `launched` begins, since this GEMM, launched at about the
    /// same time, may have filled the GPU first: no block leaves before its last wave then. By how much is
    /// what that makes on average, of the slowest rank.
    ///
    /// In timelines of reductions on four GPUs 4 of the 19 signals that were launched within 2.1 µs of a GEMM
    /// waited for its last wave, though their streams are more urgent; of 27 others within 8 µs none did.
    fn overtaken_until(&self, gemm: NodeId, launched: f64) -> f64 {
        let (cost, latency) = (&self.costs[gemm], &self.machine.latency);
        let node = &self.program.nodes[gemm];
        let is_alone = || self.gemms(node.rank).all(|(other, _)| other == gemm);
        if !latency.by_kernel
            || latency.overtaken_us <= 0.0
            || cost.last_wave.us <= 0.0
            || !self.fills(gemm, cost.time)
            || !is_alone()
        {
            return f64::NEG_INFINITY;
        }
        let begun = self.begun(gemm);
        let apart = (launched - begun) / latency.overtaken_us;
        let of_one = OVERTAKEN * (-apart.powi(4)).exp();
        let of_any = 1.0 - (1.0 - of_one).powf(self.program.plans.len() as f64);
        launched.max(begun) + of_any * (cost.time - cost.last_wave.us).max(0.0)
    }

    /// When the turn of a step came.
    fn begun(&self, id: NodeId) -> f64 {
        self.start[id].unwrap_or(self.now)
    }

    /// Whether its stream goes before others.
    fn is_urgent(&self, id: NodeId) -> bool {
        let node = &self.program.nodes[id];
        let plan = self.program.plans[node.rank];
        let stream = op_of(node.site).map(|op| plan.ops[op].stream.0);
        stream.is_some_and(|stream| plan.streams[stream] == Priority::High)
    }
}
