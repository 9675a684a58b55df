//! What each step costs on a machine.

use super::collectives::incoming;
use super::machine::Machine;
use super::sharing::{Loads, Resource};
use crate::check::Site;
use crate::check::program::Node;
use crate::plan::{
    BufferId, Collective, Effect, MulticastRegion, OpKind, Plan, Provider, Region, Transport,
};
use std::collections::{BTreeMap, BTreeSet};
use warpweave_symm_mem::cuda::copy_blocks;

/// What a step costs by itself.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// Before it runs, µs.
    pub(crate) latency: f64,
    /// How long it runs at full speed, µs.
    pub(crate) time: f64,
    /// What it takes while it runs.
    pub(crate) loads: Loads,
    /// The peer of a copy between ranks that needs an engine of this rank; for a local copy the rank itself.
    pub(crate) engine: Option<usize>,
    /// Whether that copy is one of those by which a rank pulls from several peers.
    pub(crate) pulls: bool,
    /// Whether it is a GEMM of the tensor cores, which draws power.
    pub(crate) gemm: bool,
    /// Of a collective the part of its rate that GEMMs take from it while they hold all SMs.
    pub(crate) lost_to_gemms: f64,
    /// Of a GEMM its last wave.
    pub(crate) last_wave: LastWave,
    /// Whether it is a signal or a wait that is an operation of a stream: a kernel of one block.
    pub(crate) handshake: bool,
}

/// The last wave of a GEMM's tiles.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastWave {
    /// How long it takes, like every other, µs.
    pub(crate) us: f64,
    /// The part of the SMs that have a tile.
    pub(crate) sms: f64,
}

impl Cost {
    /// µs in which nothing is used.
    pub fn latency(latency: f64) -> Cost {
        Cost {
            latency,
            ..Cost::default()
        }
    }

    /// Whether it is this cost with other GPUs in the places of its own.
    pub(super) fn is_moved(&self, other: &Cost, moved: impl Fn(usize) -> usize) -> bool {
        let load = |(ours, theirs): (&(Resource, f64), &(Resource, f64))| {
            std::mem::discriminant(&ours.0) == std::mem::discriminant(&theirs.0)
                && ours.0.gpu() == moved(theirs.0.gpu())
                && ours.1 == theirs.1
        };
        (self.latency, self.time) == (other.latency, other.time)
            && self.loads.len() == other.loads.len()
            && self.loads.iter().zip(&other.loads).all(load)
            && self.engine == other.engine.map(moved)
            && (self.pulls, self.gemm, self.handshake) == (other.pulls, other.gemm, other.handshake)
    }

    /// How many times as fast a GEMM is as by its share of the SMs, where others hold a part of them. Its
    /// blocks are persistent and have their tiles from the launch on: those that find no SM begin when the
    /// first have ended, and take as long.
    pub(super) fn in_whole_rounds(&self, others: f64) -> f64 {
        let (last, left) = (self.last_wave, 1.0 - others);
        if last.us <= 0.0 || others <= 0.0 || left <= 0.0 {
            return 1.0;
        }
        let waves = (self.time / last.us).round();
        let blocks = if waves > 1.0 { 1.0 } else { last.sms };
        let shared = (left / blocks).min(1.0);
        // What is a round but for rounding is one.
        let rounds = (blocks / left - 1e-6).ceil();
        1.0 / rounds / shared
    }

    /// Takes this share of a GPU's power too.
    pub(crate) fn with_power(mut self, gpu: usize, share: f64) -> Cost {
        self.loads.push((Resource::Power(gpu), share));
        self
    }

    /// Of a transfer that is signalled once it has arrived.
    pub(crate) fn arriving(mut self) -> Cost {
        self.latency += ARRIVAL_US;
        self
    }

    /// Of a transfer that the same threads make for all peers: they share what one peer would get, or give.
    pub(crate) fn by_same_threads(mut self, link: Resource) -> Cost {
        for (resource, share) in &mut self.loads {
            if *resource == link {
                *share = 1.0;
            }
        }
        self
    }
}

/// The round trip of a bulk copy over a link, and the count of those of a launch. `docs/fused-kernel.md`
/// measures it by clocks in the kernel.
const ARRIVAL_US: f64 = 3.0;

/// What a copy by SMs takes besides its bytes, its launch included: one of 1 MiB takes 11 µs.
const COPY_US: f64 = 8.0;

/// How long a thread takes for a term of a sum, whose next one waits for it: four cycles of a Hopper's 2 GHz.
const TERM_US: f64 = 0.002;

/// Bytes over GB/s, in µs.
pub(crate) fn micros(bytes: f64, gbs: f64) -> f64 {
    bytes / (gbs * 1e3)
}

/// What the steps of one rank cost on a machine.
#[derive(Clone, Copy, Debug)]
pub struct Costs<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The rank's plan.
    pub plan: &'a Plan,
    /// What the launch at hand moves over the links by the SMs, bytes: the more of what is loaded from peers
    /// and what is stored to them.
    pub(super) moved: f64,
    /// What the plan's pulls by copy engine reach, if they are from several peers, GB/s.
    pulls_gbs: Option<f64>,
}

/// The same for all launches of its plan.
pub(super) struct PlanCosts<'a> {
    costs: Costs<'a>,
    /// What each operation moves over the links by the SMs.
    moved: Vec<f64>,
}

impl<'a> PlanCosts<'a> {
    pub(super) fn new(machine: &'a Machine, plan: &'a Plan) -> Self {
        let costs = Costs {
            machine,
            plan,
            moved: 0.0,
            pulls_gbs: pulls_gbs(machine, plan),
        };
        let moved = plan.ops.iter().map(|op| match &op.kind {
            OpKind::Kernel { lanes, .. } => costs.moved_by(lanes),
            _ => 0.0,
        });
        Self {
            costs,
            moved: moved.collect(),
        }
    }

    pub(super) fn of(&self, node: &Node<'_>) -> Cost {
        let moved = match node.site {
            Site::Effect { op, .. } => self.moved[op],
            _ => 0.0,
        };
        Costs {
            moved,
            ..self.costs
        }
        .of(node)
    }
}

/// What pulls by copy engine from several peers reach, GB/s; `None` if the plan has none. Ranks that pull
/// from one peer alone, as in a ring, are as fast as if they pushed. Those that go from peer to peer without
/// a pause, or pull from several at the same moment, end up at one that serves several while others serve
/// none. With a GEMM between two pulls each rank pulls from a peer of its own.
fn pulls_gbs(machine: &Machine, plan: &Plan) -> Option<f64> {
    let mut peers = BTreeSet::new();
    // The peer of the last pull of each stream, or none if that was a GEMM.
    let mut last = BTreeMap::new();
    let (mut first, mut follows) = (0, false);
    for op in &plan.ops {
        let peer = match &op.kind {
            OpKind::Copy { src, dst } if src.rank != plan.rank && dst.rank == plan.rank => {
                Some(src.rank)
            }
            OpKind::Gemm { .. } => None,
            _ => continue,
        };
        peers.extend(peer);
        let before = last.insert(op.stream, peer);
        first += usize::from(peer.is_some() && before.is_none());
        // Of one peer's rows several copies may come, as of rows with their scales.
        follows |= matches!((peer, before), (Some(now), Some(Some(last))) if now != last);
    }
    let link = &machine.link;
    (peers.len() > 1).then_some(match (first, follows) {
        (2.., _) => link.pulls_streams_gbs,
        (_, true) => link.pulls_gbs,
        _ => link.copy_engine_gbs,
    })
}

impl Costs<'_> {
    fn of(&self, node: &Node<'_>) -> Cost {
        let t = &self.machine.latency;
        match node.site {
            Site::CallerWrites | Site::CallerReads => Cost::default(),
            Site::Begin(op) => match &self.plan.ops[op].kind {
                OpKind::Kernel { .. } => Cost::latency(t.launch_us),
                _ => Cost::default(),
            },
            Site::Effect { op, lane, index } => match &self.plan.ops[op].kind {
                OpKind::Kernel { kernel, lanes } => {
                    let rest = &lanes[lane][index..];
                    kernel.cost(self, rest).unwrap_or_else(|| self.effect(rest))
                }
                _ => Cost::default(),
            },
            Site::End(op) | Site::Op(op) => {
                let kind = &self.plan.ops[op].kind;
                Cost {
                    handshake: matches!(kind, OpKind::Signal { .. } | OpKind::Wait { .. }),
                    ..self.op(op)
                }
            }
        }
    }

    /// The more of what these lanes load from peers and of what they store to them, bytes.
    fn moved_by(&self, lanes: &[Vec<Effect>]) -> f64 {
        let (mut loaded, mut stored) = (0.0, 0.0);
        for effect in lanes.iter().flatten() {
            match effect {
                Effect::Read(region) if region.rank != self.plan.rank => {
                    loaded += self.bytes(region);
                }
                Effect::Write(region) if region.rank != self.plan.rank => {
                    stored += self.bytes(region);
                }
                _ => {}
            }
        }
        f64::max(loaded, stored)
    }

    fn op(&self, op: usize) -> Cost {
        let kind = &self.plan.ops[op].kind;
        let t = &self.machine.latency;
        let link = &self.machine.link;
        match kind {
            OpKind::Copy { src, dst } if self.plan.copies_by(dst) == Transport::ThreadLoads => {
                let (own, bytes) = (self.plan.rank, self.bytes(dst));
                let mut cost = self.transfer(src.rank, &[dst.rank], bytes, link.sm_push_gbs);
                cost.latency += COPY_US;
                let blocks = copy_blocks(bytes as usize) as f64;
                let sms = (blocks / self.machine.gpu.sms as f64).min(1.0);
                cost.loads.push((Resource::Sms(own), sms));
                cost
            }
            OpKind::Copy { src, dst } => {
                let own = self.plan.rank;
                let pulls = self.pulls_gbs.filter(|_| src.rank != own);
                let rate = pulls.unwrap_or(link.copy_engine_gbs);
                let mut cost = self.moved_to(src.rank, &[dst.rank], self.bytes(dst), rate);
                cost.latency += match self.follows_copy(op) {
                    true => t.next_copy_us,
                    false if src.rank == own => t.copy_us,
                    false => t.copy_us + t.pull_us,
                };
                let peer = if src.rank == own { dst.rank } else { src.rank };
                cost.engine = Some(peer);
                if peer != own {
                    cost.loads.push((Resource::Engines(own), 1.0));
                }
                cost.pulls = pulls.is_some();
                cost
            }
            OpKind::MulticastCopy { src, dst } => {
                let all: Vec<usize> = (0..self.plan.world).collect();
                let bytes = self.bytes(&dst.on(src.rank));
                let mut cost = self.moved_to(src.rank, &all, bytes, link.copy_engine_gbs);
                cost.latency += t.copy_us;
                cost.engine = Some(self.plan.rank);
                cost
            }
            OpKind::Gemm {
                a,
                c,
                activation,
                batch,
                provider,
                ..
            } => {
                // The tiles of a batch fill the device like those of one GEMM with as many rows.
                let columns = activation.sums(c.cols.len());
                let shape = (c.rows.len() * batch.count, columns, a.cols.len());
                let dtype = self.plan.buffers[a.buffer.0].dtype;
                let (latency, waves) = match provider {
                    Provider::Cutlass => {
                        let hidden = match self.follows_kernel(op) {
                            true => t.launch_us,
                            false => 0.0,
                        };
                        let waves = self.machine.waves(shape, dtype);
                        let slower = waves.ragged(shape) / self.machine.gemm.cutlass;
                        (-hidden, waves.slower(slower))
                    }
                    _ => (0.0, self.machine.library_waves(shape, dtype)),
                };
                // Its launch does not overlap with the end of a GEMM after which an event is recorded.
                let recorded = match self.follows_recorded_gemm(op) {
                    true => t.event_us,
                    false => 0.0,
                };
                let (latency, busy) = (
                    (self.machine.gemm.launch_us + latency).max(0.0) + recorded,
                    waves.tiles.min(1.0),
                );
                Cost {
                    latency,
                    time: waves.time(),
                    loads: vec![
                        (Resource::Sms(self.plan.rank), busy),
                        (Resource::Power(self.plan.rank), busy),
                    ],
                    gemm: true,
                    last_wave: waves.last(),
                    ..Cost::default()
                }
            }
            OpKind::Reduce { srcs, dst } => {
                let own = self.plan.rank;
                let (here, there): (Vec<_>, Vec<_>) = srcs.iter().partition(|s| s.rank == own);
                let mut cost = self.local(self.bytes(dst) * (here.len() + 1) as f64 / 2.0);
                cost.latency = t.launch_us;
                cost.loads.push((Resource::Sms(own), 1.0));
                // Loads from peers overlap with local ones.
                for src in there {
                    let pull = self.transfer(src.rank, &[own], self.bytes(src), link.sm_pull_gbs);
                    cost.time = cost.time.max(pull.time);
                    cost.loads.extend(pull.loads);
                }
                cost
            }
            OpKind::Collective {
                collective,
                src,
                dst,
                ranks,
                transport,
                then,
            } => {
                let whole = self.bytes(src).max(self.bytes(dst));
                let cost = self.collective(*collective, whole, ranks, *transport);
                match then {
                    None => cost,
                    Some(norm) => {
                        let quantized = norm.quantized.iter();
                        let more = quantized.map(|to| self.bytes(&to.values)).sum();
                        self.normalized(cost, (whole, more), (ranks, *transport))
                    }
                }
            }
            OpKind::Signal { .. } => Cost::latency(t.launch_us),
            OpKind::Wait { .. } => Cost::latency(t.wait_us),
            OpKind::Record { .. } => Cost::default(),
            OpKind::WaitEvent { .. } => Cost::latency(t.event_us),
            // The lanes have their own costs.
            OpKind::Kernel { .. } => Cost::default(),
        }
    }

    /// Whether the operation before this one on its stream is a kernel, of which a CUTLASS GEMM is the
    /// programmatic dependent: its launch overlaps with the kernel.
    fn follows_kernel(&self, op: usize) -> bool {
        matches!(self.before(op), Some(OpKind::Kernel { .. }))
    }

    /// Whether this operation and the one before it on its stream are copies between ranks.
    fn follows_copy(&self, op: usize) -> bool {
        let between =
            |kind: &OpKind| matches!(kind, OpKind::Copy { src, dst } if src.rank != dst.rank);
        between(&self.plan.ops[op].kind) && self.before(op).is_some_and(between)
    }

    /// Whether the operations before this one on its stream are a GEMM and the record of an event.
    fn follows_recorded_gemm(&self, op: usize) -> bool {
        let recorded = |kind: &&OpKind| matches!(kind, OpKind::Record { .. });
        let records = self.earlier(op).take_while(recorded).count();
        let gemm = self.earlier(op).nth(records);
        records > 0 && matches!(gemm, Some(OpKind::Gemm { .. }))
    }

    /// The operation before this one on its stream.
    fn before(&self, op: usize) -> Option<&OpKind> {
        self.earlier(op).next()
    }

    /// The operations before this one on its stream, the last first.
    fn earlier(&self, op: usize) -> impl Iterator<Item = &OpKind> {
        let stream = self.plan.ops[op].stream;
        let earlier = self.plan.ops[..op].iter().rev();
        let earlier = earlier.filter(move |before| before.stream == stream);
        earlier.map(|before| &before.kind)
    }

    /// A collective whose larger side has `whole` bytes.
    fn collective(
        &self,
        collective: Collective,
        whole: f64,
        ranks: &[usize],
        transport: Transport,
    ) -> Cost {
        if ranks.len() < 2 {
            let mut cost = self.local(whole);
            cost.latency = self.machine.latency.launch_us;
            return cost;
        }
        let (own, machine) = (self.plan.rank, self.machine);
        let library = machine.collectives.of(transport);
        let mut time = library.time(collective, whole, ranks.len());
        let bytes = incoming(collective, whole, ranks.len());
        let near = ranks.iter().filter(|&&rank| machine.same_node(own, rank));
        let near = near.count();
        let nodes = ranks.len().div_ceil(near);
        let mut loads = vec![(Resource::Sms(own), library.sms)];
        if nodes > 1 {
            // Rings enter and leave a node by the ports of all its GPUs that take part, in turn.
            let port = micros(bytes / near as f64, machine.network.gbs);
            let doublings = f64::from(usize::BITS - (nodes - 1).leading_zeros());
            time = time.max(port) + doublings * machine.network.latency_us;
            let share = (port / time).min(1.0);
            loads.extend([
                (Resource::NetworkOut(own), share),
                (Resource::NetworkIn(own), share),
            ]);
        }
        if near > 1 {
            let share = (micros(bytes, machine.link.gbs) / time).min(1.0);
            loads.extend([
                (Resource::LinkOut(own), share),
                (Resource::LinkIn(own), share),
            ]);
        }
        self.add_power(&mut loads);
        Cost {
            time,
            loads,
            lost_to_gemms: 1.0 - library.during_gemms,
            ..Cost::default()
        }
    }

    /// An all-reduce of `whole` bytes, and the residual addition and RMSNorm of its result: two matrices more
    /// are read, and two written, with `more` bytes besides. Over symmetric memory one launch does both, and
    /// has what it has reduced in registers.
    fn normalized(
        &self,
        reduced: Cost,
        (whole, more): (f64, f64),
        (ranks, transport): (&[usize], Transport),
    ) -> Cost {
        let (launch, passes) = match transport {
            // Nothing is reduced: the copy to the result, of which the cost is, does not take place.
            _ if ranks.len() < 2 => (0.0, 2.0),
            Transport::SymmetricMemory => (0.0, 3.0),
            _ => (self.machine.latency.launch_us, 4.0),
        };
        Cost {
            time: reduced.time + launch + self.local((whole * passes + more) / 2.0).time,
            ..reduced
        }
    }

    /// What a transfer by SMs takes from GEMMs, and GEMMs from it, by its share of the links: one half each
    /// for out of a GPU and into it.
    fn add_power(&self, loads: &mut Loads) {
        let taken = (1.0 / self.machine.gemm.during_transfers - 1.0) / 2.0;
        let ends: Loads = loads
            .iter()
            .filter_map(|&(resource, share)| match resource {
                Resource::LinkOut(gpu) | Resource::LinkIn(gpu) => {
                    Some((Resource::Power(gpu), taken * share))
                }
                _ => None,
            })
            .collect();
        loads.extend(ends);
    }

    /// The default cost of the first of these effects, which are the rest of a lane: loads from a peer and
    /// stores to one cross the link, own stores go through memory, own loads overlap with what uses them.
    pub fn effect(&self, rest: &[Effect]) -> Cost {
        let (own, link) = (self.plan.rank, &self.machine.link);
        let Some((effect, later)) = rest.split_first() else {
            return Cost::default();
        };
        match effect {
            Effect::Read(region) if region.rank != own => {
                self.pull(region.rank, self.bytes(region), 1.0)
            }
            Effect::Write(region) if region.rank != own => self.push(region, later, 1.0),
            Effect::Write(region) => self.local(self.bytes(region)),
            Effect::Read(_) => Cost::default(),
            Effect::WriteMulticast(region) => self.multicast(region, own, link.sm_push_gbs),
            Effect::Signal { .. } | Effect::After(_) => Cost::default(),
            Effect::Wait { .. } => Cost::latency(self.machine.latency.wait_us),
        }
    }

    /// What the SMs reach in the launch at hand, of `gbs` that they reach once they are under way: between
    /// more than two ranks the first bytes take longer, of which this part is felt.
    fn with_start(&self, gbs: f64, felt: f64) -> f64 {
        let link = &self.machine.link;
        if self.plan.world <= 2 || self.moved <= 0.0 {
            return gbs;
        }
        let start = micros(self.moved, link.sm_start_gbs).min(link.sm_start_us);
        let whole = micros(self.moved, gbs);
        gbs * whole / (whole + felt * start)
    }

    /// What loads reach in the launch at hand, GB/s.
    pub(crate) fn pull_gbs(&self, felt: f64) -> f64 {
        self.with_start(self.machine.link.sm_pull_gbs, felt)
    }

    /// Bytes that the threads which load them load from all peers at once.
    pub(crate) fn pull(&self, from: usize, bytes: f64, felt: f64) -> Cost {
        let own = self.plan.rank;
        let cost = self.transfer(from, &[own], bytes, self.pull_gbs(felt));
        cost.by_same_threads(Resource::LinkIn(own))
    }

    /// A region of a peer that the threads which store it store to all peers at once; `later` is what follows
    /// in their lane.
    pub(crate) fn push(&self, region: &Region, later: &[Effect], felt: f64) -> Cost {
        let own = self.plan.rank;
        let gbs = self.with_start(self.machine.link.sm_push_gbs, felt);
        let cost = self.transfer(own, &[region.rank], self.bytes(region), gbs);
        let cost = cost.by_same_threads(Resource::LinkOut(own));
        // What goes to several peers arrives everywhere at a time.
        match later.first() {
            Some(Effect::Write(next)) if next.rank != own => cost,
            _ => cost.arriving(),
        }
    }

    /// A GEMM on the tensor cores, in µs and as a share of this GPU's SMs.
    pub fn gemm(&self, time: f64, sms: f64) -> Cost {
        Cost {
            gemm: true,
            ..self.on_sms(time, sms)
        }
    }

    /// Work on this GPU's SMs, in µs and as a share of them.
    pub fn on_sms(&self, time: f64, sms: f64) -> Cost {
        Cost {
            time,
            loads: vec![(Resource::Sms(self.plan.rank), sms)],
            ..Cost::default()
        }
    }

    /// Rows of C at a rate in TFLOP/s without tensor cores, of a thread for each element: few elements leave
    /// SMs idle, and take as long as one.
    pub(crate) fn scalar_gemm(&self, c: &Region, k: usize, tflops: f64) -> Cost {
        let us = 2.0 * c.len() as f64 * k as f64 / (tflops * 1e6);
        let least = match c.is_empty() {
            true => 0.0,
            false => k as f64 * TERM_US,
        };
        self.on_sms(us.max(least), (us / least).min(1.0))
    }

    /// Whether a region is of this rank's copy of a buffer.
    pub fn is_own(&self, region: &Region, buffer: BufferId) -> bool {
        region.rank == self.plan.rank && region.buffer == buffer
    }

    /// Size of a region in bytes.
    pub fn bytes(&self, region: &Region) -> f64 {
        region.len() as f64 * self.plan.buffers[region.buffer.0].dtype.size() as f64
    }

    /// A copy within this GPU reads and writes its memory.
    pub fn local(&self, bytes: f64) -> Cost {
        Cost {
            time: micros(2.0 * bytes, self.machine.gpu.memory_gbs),
            loads: vec![(Resource::Memory(self.plan.rank), 1.0)],
            ..Cost::default()
        }
    }

    fn multicast(&self, region: &MulticastRegion, from: usize, rate: f64) -> Cost {
        let node: Vec<usize> = self.plan.node_of(from).collect();
        self.transfer(from, &node, self.bytes(&region.on(from)), rate)
    }

    /// As many bytes of each rank, which the switch adds on their way to this one, at `rate`: all peers send
    /// theirs, and as many as of one arrive.
    pub fn reduced(&self, bytes: f64, rate: f64) -> Cost {
        let (own, world) = (self.plan.rank, self.plan.world);
        let peers = (1..world).map(|step| (own + step) % world);
        let mut pulls = peers.map(|peer| self.transfer(peer, &[own], bytes, rate));
        let Some(mut cost) = pulls.next() else {
            return self.local(bytes);
        };
        for other in pulls {
            let sent = other.loads.into_iter();
            cost.loads
                .extend(sent.filter(|(resource, _)| resource.gpu() != own));
        }
        cost
    }

    /// Bytes from one rank to others at once, at `rate` within a node, by SMs.
    pub fn transfer(&self, from: usize, to: &[usize], bytes: f64, rate: f64) -> Cost {
        let mut cost = self.moved_to(from, to, bytes, rate);
        self.add_power(&mut cost.loads);
        cost
    }

    /// The same by whoever, with what it takes of links and memory alone.
    fn moved_to(&self, from: usize, to: &[usize], bytes: f64, rate: f64) -> Cost {
        let peers: Vec<usize> = to.iter().copied().filter(|&p| p != from).collect();
        if peers.is_empty() {
            return self.local(bytes);
        }
        let machine = self.machine;
        let far = |p: &usize| !machine.same_node(from, *p);
        let crosses = peers.iter().any(far);
        let rate = rate.min(machine.link.gbs);
        let rate = if crosses {
            rate.min(machine.network.gbs)
        } else {
            rate
        };
        let (link, network) = (
            rate / machine.link.gbs,
            (rate / machine.network.gbs).min(1.0),
        );
        let mut loads = Vec::new();
        if !peers.iter().all(far) {
            loads.push((Resource::LinkOut(from), link));
        }
        if crosses {
            loads.push((Resource::NetworkOut(from), network));
        }
        loads.extend(peers.iter().map(|&p| {
            if far(&p) {
                (Resource::NetworkIn(p), network)
            } else {
                (Resource::LinkIn(p), link)
            }
        }));
        Cost {
            latency: if crosses {
                machine.network.latency_us
            } else {
                0.0
            },
            time: micros(bytes, rate),
            loads,
            ..Cost::default()
        }
    }
}
