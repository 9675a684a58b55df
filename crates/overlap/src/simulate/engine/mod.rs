//! Stepping through the program in simulated time. `places` says who gets SMs, `power` what GEMMs
//! draw; what came of it is put together in `outcome`.

mod outcome;
mod places;
mod power;

use crate::check::Site;
use crate::check::program::{NodeId, Program};
use crate::plan::{OpKind, SlotId};
use crate::simulate::contention::Contention;
use crate::simulate::cost::{Cost, PlanCosts};
use crate::simulate::error::SimulateError;
use crate::simulate::machine::Machine;
use crate::simulate::sharing::{InTurn, Loads, speeds_in_turn};
use crate::timeline::{Cause, Timeline};
use power::{end_of_step, most_reserve, step_of, sustained};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What happens within a picosecond happens at once, µs.
const INSTANT: f64 = 1e-6;

/// Runs the program to its end.
pub(super) fn run(program: &Program<'_>, machine: &Machine) -> Result<Timeline, SimulateError> {
    let mut engine = Engine::new(program, machine);
    for id in 0..program.nodes.len() {
        if engine.missing[id] == 0 {
            engine.reach(id);
        }
    }
    while engine.advance() {}
    engine.timeline()
}

/// One flag of the pads: slot, source, destination.
#[derive(Default)]
struct Flag {
    /// When each value can be seen, and who stored it.
    signals: Vec<(f64, NodeId)>,
    waits: usize,
    /// Waits that were reached, and the value that they need.
    pending: Vec<(NodeId, usize)>,
}

/// Some steps in their order, each with a time.
#[derive(Default)]
struct Steps(Vec<(NodeId, f64)>);

impl Steps {
    fn insert(&mut self, id: NodeId, time: f64) {
        let place = self.0.partition_point(|&(other, _)| other < id);
        self.0.insert(place, (id, time));
    }

    fn iter(&self) -> impl Iterator<Item = (NodeId, f64)> {
        self.0.iter().copied()
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.iter().map(|(id, _)| id)
    }

    /// The time of one of them is not before `until`.
    fn put_off(&mut self, id: NodeId, until: f64) {
        let of_id = self.0.iter_mut().find(|step| step.0 == id);
        of_id
            .into_iter()
            .for_each(|step| step.1 = step.1.max(until));
    }

    /// Takes those out whose time is over.
    fn take(&mut self, is_over: impl Fn(f64) -> bool) -> Vec<NodeId> {
        let over = self.0.extract_if(.., |(_, time)| is_over(*time));
        over.map(|(id, _)| id).collect()
    }
}

/// How fast steps run together, and what that depends on.
#[derive(Default)]
struct Shares {
    /// Each step that runs, whether it is in its last wave, and whether it was placed before.
    steps: Vec<(NodeId, bool, bool)>,
    /// Of each GPU the step of its reserve.
    reserves: Vec<usize>,
    /// Of each step.
    speeds: Vec<f64>,
    /// That each GPU draws, 1 where all SMs multiply.
    power: Vec<f64>,
}

struct Engine<'a, 'p> {
    program: &'a Program<'p>,
    machine: &'a Machine,
    costs: Vec<Cost>,
    successors: Vec<Vec<NodeId>>,
    missing: Vec<usize>,
    unmet: Vec<usize>,
    now: f64,
    start: Vec<Option<f64>>,
    end: Vec<Option<f64>>,
    cause: Vec<(Cause, Option<NodeId>)>,
    /// When what held a step up was over.
    held: Vec<f64>,
    flags: BTreeMap<(SlotId, usize, usize), Flag>,
    /// Steps in their fixed part, and when that ends.
    delayed: Steps,
    /// Steps that run, and what is left of them at full speed, µs.
    running: Steps,
    /// How fast they ran when they were looked at last.
    shares: Shares,
    /// Signals and waits whose turn has come and whose block finds no place.
    kept_out: BTreeSet<NodeId>,
    engines: Vec<usize>,
    /// The energy that each GPU may draw above what its power sustains, in µs of all SMs multiplying.
    reserve: Vec<f64>,
    queued: Vec<VecDeque<NodeId>>,
}

impl<'a, 'p> Engine<'a, 'p> {
    fn new(program: &'a Program<'p>, machine: &'a Machine) -> Self {
        let count = program.nodes.len();
        let mut successors = vec![Vec::new(); count];
        let mut missing = vec![0; count];
        for (id, node) in program.nodes.iter().enumerate() {
            let all: BTreeSet<NodeId> = node.preds.iter().chain(&node.entries).copied().collect();
            // A rank that never enters a collective holds its end up for ever.
            missing[id] = all.len() + usize::from(node.absent.is_some());
            for pred in all {
                successors[pred].push(id);
            }
        }
        let plans = program.plans.iter();
        let ranks: Vec<_> = plans.map(|plan| PlanCosts::new(machine, plan)).collect();
        let costs = program.nodes.iter().map(|node| ranks[node.rank].of(node));
        Engine {
            costs: costs.collect(),
            program,
            machine,
            successors,
            missing,
            unmet: vec![0; count],
            now: 0.0,
            start: vec![None; count],
            end: vec![None; count],
            cause: vec![(Cause::Start, None); count],
            held: vec![f64::NEG_INFINITY; count],
            flags: BTreeMap::new(),
            delayed: Steps::default(),
            running: Steps::default(),
            shares: Shares::default(),
            kept_out: BTreeSet::new(),
            engines: vec![machine.gpu.copy_engines; program.plans.len()],
            reserve: vec![most_reserve(machine); program.plans.len()],
            queued: vec![VecDeque::new(); program.plans.len()],
        }
    }

    /// `id` could not go on before `until`, because of `by`.
    fn hold(&mut self, id: NodeId, until: f64, cause: Cause, by: NodeId) {
        if until >= self.held[id] {
            self.held[id] = until;
            self.cause[id] = (cause, Some(by));
        }
    }

    /// Its turn has come: everything before it has ended.
    fn reach(&mut self, id: NodeId) {
        self.start[id] = Some(self.now);
        match self.is_kept_out(id) {
            true => _ = self.kept_out.insert(id),
            false => self.begin(id),
        }
    }

    /// Its kernel, if it is one, has a place.
    fn begin(&mut self, id: NodeId) {
        let node = &self.program.nodes[id];
        if self.costs[id].handshake {
            self.place_handshake(id);
        }
        if let Some(wait) = node.wait {
            for &from in wait.from {
                let flag = self.flags.entry((wait.slot, from, node.rank)).or_default();
                flag.waits += 1;
                let needs = flag.waits.saturating_sub(wait.lag as usize);
                if needs == 0 {
                    continue;
                }
                match flag.signals.get(needs - 1).copied() {
                    Some((seen, by)) => {
                        if seen > self.now {
                            self.hold(id, seen, Cause::Signal, by);
                        }
                    }
                    None => {
                        flag.pending.push((id, needs));
                        self.unmet[id] += 1;
                    }
                }
            }
        }
        if self.unmet[id] == 0 {
            self.release(id);
        }
        if self.costs[id].gemm {
            self.overtake(id);
        }
    }

    /// Nothing is missing any more: its fixed part begins, or its place in the queue for an engine.
    fn release(&mut self, id: NodeId) {
        let rank = self.program.nodes[id].rank;
        if self.costs[id].engine.is_some() {
            if !self.has_engine(id) {
                self.queued[rank].push_back(id);
                return;
            }
            self.engines[rank] -= 1;
        }
        let begin = self.held[id].max(self.now);
        self.delayed.insert(id, begin + self.costs[id].latency);
    }

    /// A pull has waited for one from another peer. Meanwhile it has started up but for its requests, which
    /// cross the link now.
    fn start_up(&mut self, pull: NodeId) {
        let latency = &self.machine.latency;
        let requests = latency.next_copy_us + latency.pull_us;
        let reached = self.start[pull].unwrap_or(self.now).max(self.held[pull]);
        let whole = self.costs[pull].latency;
        let left = (whole - (self.now - reached)).max(requests);
        self.costs[pull].latency = whole.min(left);
    }

    /// Whether a copy can begin: an engine is free, and of pulls from several peers none is under way.
    fn has_engine(&self, id: NodeId) -> bool {
        let rank = self.program.nodes[id].rank;
        let pulls =
            |other: NodeId| self.costs[other].pulls && self.program.nodes[other].rank == rank;
        let mut under_way = self.running.ids().chain(self.delayed.ids());
        self.engines[rank] > 0 && !(self.costs[id].pulls && under_way.any(pulls))
    }

    /// Goes on to the next moment at which something happens.
    fn advance(&mut self) -> bool {
        if let Some(shares) = self.changed_shares() {
            self.shares = shares;
        }
        let (speeds, power) = (&self.shares.speeds, &self.shares.power);
        let machine = self.machine;
        let sustained = sustained(machine);
        let ends = self.running.iter().zip(speeds);
        let next = ends
            .map(|((id, left), speed)| self.now + self.until_change(id, left) / speed)
            .chain(self.delayed.iter().map(|(_, at)| at))
            .chain(
                // When a GPU's GEMMs become slower.
                power
                    .iter()
                    .zip(&self.reserve)
                    .filter(|(power, reserve)| **power > sustained && **reserve > 0.0)
                    .map(|(power, &reserve)| {
                        self.now + (reserve - end_of_step(reserve, machine)) / (power - sustained)
                    }),
            )
            .min_by(f64::total_cmp);
        let Some(next) = next else {
            return false;
        };
        let step = (next - self.now).max(0.0);
        for (reserve, power) in self.reserve.iter_mut().zip(power) {
            let left = *reserve + step * (sustained - power);
            *reserve = left.min(most_reserve(machine));
            let end = end_of_step(*reserve, machine);
            if *reserve <= end + INSTANT {
                *reserve = end;
            }
        }
        let mut ended = Vec::new();
        let mut with_speeds = speeds.iter();
        self.running.0.retain_mut(|(id, left)| {
            let speed = with_speeds.next().copied().unwrap_or_default();
            *left -= step * speed;
            let is_over = *left <= INSTANT * speed;
            if is_over {
                ended.push(*id);
            }
            !is_over
        });
        self.now = self.now.max(next);
        for id in self.delayed.take(|at| at <= self.now + INSTANT) {
            if self.costs[id].time > 0.0 {
                self.running.insert(id, self.costs[id].time);
            } else {
                ended.push(id);
            }
        }
        ended.sort_unstable();
        for id in ended {
            self.finish(id);
        }
        for id in self.kept_out.clone() {
            if !self.is_kept_out(id) {
                self.kept_out.remove(&id);
                self.begin(id);
            }
        }
        true
    }

    /// The speeds of what runs, in the order of `running`, and the power that each GPU draws. Blocks keep
    /// their places; then what begins first gets SMs first, and what comes later what is left of them, as
    /// blocks are dispatched in the order of launches, those of urgent streams before others. GEMMs are
    /// throttled to the power that the GPU has.
    ///
    /// `None` where nothing that they depend on has changed.
    fn changed_shares(&self) -> Option<Shares> {
        let step = |&left| step_of(left, self.machine);
        let reserves: Vec<usize> = self.reserve.iter().map(step).collect();
        let steps = self.running.iter();
        let steps: Vec<_> = steps
            .map(|(id, left)| (id, self.is_last_wave(id, left), self.is_placed(id)))
            .collect();
        if (&self.shares.steps, &self.shares.reserves) == (&steps, &reserves) {
            return None;
        }
        let ranks = |&(id, ..): &(NodeId, bool, bool)| self.program.nodes[id].rank;
        let costs = |&(id, ..): &(NodeId, bool, bool)| &self.costs[id];
        let running = self.running.iter();
        let loads: Vec<Loads> = running.map(|(id, left)| self.takes(id, left)).collect();
        let with = steps.iter().zip(&loads);
        let with = with.map(|(step, loads)| (ranks(step), costs(step), loads));
        let contention = Contention::of(self.machine, self.reserve.len(), with);
        let jobs = steps.iter().zip(&loads).zip(self.places());
        let jobs: Vec<InTurn<'_>> = jobs
            .map(|((step, loads), place)| InTurn {
                loads,
                place,
                together: costs(step).gemm,
            })
            .collect();
        let mut speeds = speeds_in_turn(&jobs, |resource| contention.capacity(resource));
        let power = self.draw(&jobs, &mut speeds);
        Some(Shares {
            steps,
            reserves,
            speeds,
            power,
        })
    }

    fn finish(&mut self, id: NodeId) {
        self.end[id] = Some(self.now);
        let node = &self.program.nodes[id];
        if self.costs[id].engine.is_some() {
            self.engines[node.rank] += 1;
            let mut queued = self.queued[node.rank].iter();
            if let Some(at) = queued.position(|&next| self.has_engine(next))
                && let Some(next) = self.queued[node.rank].remove(at)
            {
                if self.costs[next].pulls {
                    self.start_up(next);
                }
                self.hold(next, self.now, Cause::Engine, id);
                self.release(next);
            }
        }
        if let Some((slot, to)) = node.signal {
            for &to in to {
                self.signal(id, slot, to);
            }
        }
        for next in std::mem::take(&mut self.successors[id]) {
            self.missing[next] -= 1;
            let theirs = &self.program.nodes[next];
            let cause = if theirs.entries.contains(&id) {
                Cause::Collective
            } else if theirs.preds.first() != Some(&id) && self.is_event(next) {
                Cause::Event
            } else {
                Cause::Order
            };
            self.hold(next, self.now, cause, id);
            if self.missing[next] == 0 {
                self.reach(next);
            }
        }
    }

    fn is_event(&self, id: NodeId) -> bool {
        let node = &self.program.nodes[id];
        let Site::Op(op) = node.site else {
            return false;
        };
        matches!(
            self.program.plans[node.rank].ops[op].kind,
            OpKind::WaitEvent { .. }
        )
    }

    fn signal(&mut self, id: NodeId, slot: SlotId, to: usize) {
        let from = self.program.nodes[id].rank;
        let mut seen = self.now;
        if to != from {
            seen += self.machine.latency.signal_us;
        }
        if !self.machine.same_node(from, to) {
            seen += self.machine.network.latency_us;
        }
        let flag = self.flags.entry((slot, from, to)).or_default();
        flag.signals.push((seen, id));
        let value = flag.signals.len();
        let met: Vec<NodeId> = flag
            .pending
            .iter()
            .filter(|p| p.1 <= value)
            .map(|p| p.0)
            .collect();
        flag.pending.retain(|p| p.1 > value);
        for wait in met {
            self.hold(wait, seen, Cause::Signal, id);
            self.unmet[wait] -= 1;
            if self.unmet[wait] == 0 {
                self.release(wait);
            }
        }
    }
}

fn op_of(site: Site) -> Option<usize> {
    match site {
        Site::CallerWrites | Site::CallerReads => None,
        Site::Op(op) | Site::Begin(op) | Site::End(op) | Site::Effect { op, .. } => Some(op),
    }
}
