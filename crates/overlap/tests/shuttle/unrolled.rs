//! Plans whose every access can be seen: calls are unrolled, the caller's own accesses among them, and what
//! reads or writes becomes copies that keep what was read and write what nothing else writes.
//!
//! Streams, events, signals, waits and collectives stay as they are. A kernel's lanes become streams. What a
//! collective touches, it touches when it begins and when it ends.

use std::collections::HashMap;

use crate::ranks::{Rank, explore};
use warpweave_overlap::check::{Site, Step};
use warpweave_overlap::plan::{
    Buffer, BufferId, Collective, Effect, EventId, OpKind, Placement, Plan, Region, Role, Slot,
    SlotId, StreamId, Transport,
};
use warpweave_symm_mem::{DType, Priority, SignalFault};

/// Rank, call and site of a step.
type Key = (usize, usize, Site);

fn key(step: &Step) -> Key {
    (step.rank, step.call, step.site)
}

/// The end of one rank's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Every buffer, with all that was read.
    pub memory: Vec<Vec<u8>>,
    /// The wait that ended by its deadline, if one did.
    pub fault: Option<SignalFault>,
}

/// All ranks' plans over some calls.
pub struct Unrolled {
    plans: Vec<Plan>,
    values: Vec<Vec<u8>>,
}

impl Unrolled {
    /// All steps of `calls` calls, in any order that their synchronisation allows.
    pub fn free(plans: &[Plan], calls: usize) -> Self {
        Self::of(plans, calls, None)
    }

    /// The steps of `order` alone, in that order: one more stream of rank 0 lets each of them go and waits
    /// for it. Steps still wait for what their plan makes them wait for; an order that it does not allow ends
    /// by a deadline.
    pub fn in_order(plans: &[Plan], order: &[Step]) -> Self {
        let calls = order.iter().map(|step| step.call).max().unwrap_or(0);
        Self::of(plans, calls, Some(order))
    }

    fn of(plans: &[Plan], calls: usize, order: Option<&[Step]>) -> Self {
        let mut ranks: Vec<Unroller<'_>> = plans
            .iter()
            .map(|plan| Unroller::new(plan, order))
            .collect();
        for rank in &mut ranks {
            (1..=calls).for_each(|call| rank.call(call));
        }
        let streams = ranks
            .iter()
            .map(|rank| rank.plan.streams.len())
            .max()
            .unwrap_or(0);
        if let Some(order) = order {
            let places: Vec<(usize, usize)> = order
                .iter()
                .map(|step| (step.rank, ranks[step.rank].places[&key(step)]))
                .collect();
            ranks[0].conduct(&places);
        }
        let (plans, values) = ranks.into_iter().map(|rank| rank.finish(streams)).unzip();
        Unrolled { plans, values }
    }

    /// Runs it under `schedules` random schedules.
    pub fn run(self, seed: u64, schedules: usize) -> Vec<Vec<Outcome>> {
        explore(seed, schedules, self.plans.len(), move |rank| {
            self.outcome(&rank)
        })
    }

    fn outcome(&self, rank: &Rank) -> Outcome {
        let plan = &self.plans[rank.index()];
        let bound = rank.bind(plan.clone()).unwrap();
        bound.write("values", &self.values[rank.index()]).unwrap();
        rank.exchange.barrier("begin").unwrap();
        bound.run().unwrap();
        let fault = bound.synchronize().err().map(|error| {
            error
                .signal_fault()
                .unwrap_or_else(|| panic!("{error}"))
                .clone()
        });
        rank.exchange.barrier("end").unwrap();
        let read = |buffer: &Buffer| {
            let mut bytes = vec![0; buffer.bytes()];
            bound.read(&buffer.name, &mut bytes).unwrap();
            bytes
        };
        let memory = plan.buffers.iter().map(read).collect();
        // Nobody leaves while a peer still reads.
        rank.exchange.barrier("read").unwrap();
        Outcome { memory, fault }
    }
}

struct Unroller<'a> {
    source: &'a Plan,
    plan: Plan,
    order: Option<&'a [Step]>,
    /// Stream of each step that is there.
    places: HashMap<Key, usize>,
    /// Stream and begin event of each lane, by operation and lane.
    lanes: HashMap<(usize, usize), (usize, EventId)>,
    /// Columns of `values` and `seen`, and their rows so far.
    width: usize,
    written: usize,
    read: usize,
}

/// `plan.buffers` is followed by these.
const VALUES: usize = 0;
const SEEN: usize = 1;
const ENTRY: usize = 2;
const ENTRIES: usize = 3;

impl<'a> Unroller<'a> {
    fn new(source: &'a Plan, order: Option<&'a [Step]>) -> Self {
        let mut plan = source.clone();
        // The conductor speaks with everybody.
        plan.node_size = plan.world;
        plan.ops.clear();
        // Of two buffers between which calls alternate, the second follows the first.
        for buffer in plan.buffers.iter_mut().filter(|b| b.alternating) {
            buffer.alternating = false;
            buffer.rows *= 2;
        }
        Unroller {
            source,
            plan,
            order,
            places: HashMap::new(),
            lanes: HashMap::new(),
            width: source.buffers.iter().map(|b| b.cols).max().unwrap_or(0),
            written: 0,
            read: 0,
        }
    }

    fn call(&mut self, call: usize) {
        let source = self.source;
        let whole = |role| {
            let of_role = move |(_, buffer): &(usize, &Buffer)| buffer.role == role;
            let buffers = source.buffers.iter().enumerate().filter(of_role);
            let region = |(id, buffer): (usize, &Buffer)| Region {
                rank: source.rank,
                buffer: BufferId(id),
                rows: 0..buffer.rows,
                cols: 0..buffer.cols,
            };
            buffers.map(region).collect::<Vec<_>>()
        };
        let written = [Role::Input, Role::Output].map(whole).concat();
        self.accesses(0, (call, Site::CallerWrites), &[], &written);
        for (index, op) in source.ops.iter().enumerate() {
            self.op(call, index, op.stream.0, &op.kind);
        }
        self.accesses(0, (call, Site::CallerReads), &whole(Role::Output), &[]);
    }

    fn op(&mut self, call: usize, index: usize, stream: usize, kind: &OpKind) {
        match kind {
            OpKind::Signal { .. }
            | OpKind::Wait { .. }
            | OpKind::Record { .. }
            | OpKind::WaitEvent { .. } => {
                self.step(stream, (call, Site::Op(index)), vec![kind.clone()]);
            }
            OpKind::Kernel { lanes, .. } => self.kernel((call, index), stream, lanes),
            OpKind::Collective { ranks, .. } => {
                let (reads, writes) =
                    (kind.reads(), kind.writes(self.plan.node_of(self.plan.rank)));
                self.accesses(stream, (call, Site::Begin(index)), &reads, &writes);
                if self.order.is_none() {
                    let barrier = self.barrier(ranks);
                    self.push(stream, barrier);
                }
                self.accesses(stream, (call, Site::End(index)), &reads, &writes);
            }
            _ => self.accesses(
                stream,
                (call, Site::Op(index)),
                &kind.reads(),
                &kind.writes(self.plan.node_of(self.plan.rank)),
            ),
        }
    }

    /// A collective of which nothing but the barrier is of interest.
    fn barrier(&self, ranks: &[usize]) -> OpKind {
        let all = |buffer, rows| self.own(buffer, 0..rows, 1);
        OpKind::Collective {
            collective: Collective::AllGather,
            src: all(ENTRY, 1),
            dst: all(ENTRIES, ranks.len()),
            ranks: ranks.to_vec(),
            transport: Transport::Nccl,
            then: None,
        }
    }

    fn kernel(&mut self, (call, op): (usize, usize), stream: usize, lanes: &[Vec<Effect>]) {
        if !self.step(stream, (call, Site::Begin(op)), Vec::new()) {
            return;
        }
        let begun = self.event();
        self.push(stream, OpKind::Record { event: begun });
        let mut ends = Vec::new();
        for (lane, effects) in lanes.iter().enumerate() {
            let (on, ended) = self.lane(op, lane);
            self.push(on, OpKind::WaitEvent { event: begun });
            for (index, effect) in effects.iter().enumerate() {
                let at = (call, Site::Effect { op, lane, index });
                match effect.clone() {
                    Effect::Read(region) => self.accesses(on, at, &[region], &[]),
                    Effect::Write(region) => self.accesses(on, at, &[], &[region]),
                    Effect::WriteMulticast(region) => {
                        let node = self.plan.node_of(self.plan.rank);
                        let all: Vec<_> = node.map(|r| region.on(r)).collect();
                        self.accesses(on, at, &[], &all);
                    }
                    Effect::Signal { slot, to } => {
                        self.step(on, at, vec![OpKind::Signal { slot, to }]);
                    }
                    Effect::Wait { slot, from, lag } => {
                        self.step(on, at, vec![OpKind::Wait { slot, from, lag }]);
                    }
                    Effect::After(lanes) => {
                        let ends = lanes.iter().map(|&lane| OpKind::WaitEvent {
                            event: self.lane(op, lane).1,
                        });
                        let ends = ends.collect();
                        self.step(on, at, ends);
                    }
                }
            }
            self.push(on, OpKind::Record { event: ended });
            ends.push(OpKind::WaitEvent { event: ended });
        }
        self.step(stream, (call, Site::End(op)), ends);
    }

    fn lane(&mut self, op: usize, lane: usize) -> (usize, EventId) {
        if let Some(&known) = self.lanes.get(&(op, lane)) {
            return known;
        }
        let new = (self.stream(), self.event());
        self.lanes.insert((op, lane), new);
        new
    }

    fn stream(&mut self) -> usize {
        self.plan.streams.push(Priority::Normal);
        self.plan.streams.len() - 1
    }

    fn event(&mut self) -> EventId {
        self.plan.events += 1;
        EventId(self.plan.events - 1)
    }

    fn push(&mut self, stream: usize, kind: OpKind) {
        let op = warpweave_overlap::plan::Op {
            stream: StreamId(stream),
            kind,
        };
        self.plan.ops.push(op);
    }

    /// Adds a step, after its gate if there is an order; false if the order does not have it.
    fn step(&mut self, stream: usize, (call, site): (usize, Site), ops: Vec<OpKind>) -> bool {
        let place = (self.plan.rank, call, site);
        let gated = match self.order {
            Some(order) if order.iter().all(|step| key(step) != place) => return false,
            order => order.is_some(),
        };
        self.places.insert(place, stream);
        let [gate, done] = self.flags(stream);
        let conductor = || vec![0];
        if gated {
            self.push(
                stream,
                OpKind::Wait {
                    slot: gate,
                    from: conductor(),
                    lag: 0,
                },
            );
        }
        ops.into_iter().for_each(|op| self.push(stream, op));
        if gated {
            self.push(
                stream,
                OpKind::Signal {
                    slot: done,
                    to: conductor(),
                },
            );
        }
        true
    }

    /// The slots by which a stream is let go and answers.
    fn flags(&self, stream: usize) -> [SlotId; 2] {
        [0, 1].map(|which| SlotId(self.source.slots.len() + 2 * stream + which))
    }

    fn accesses(&mut self, stream: usize, at: (usize, Site), reads: &[Region], writes: &[Region]) {
        let source = self.source;
        let in_turn = |region: &Region| {
            let buffer = &source.buffers[region.buffer.0];
            let before = at.0 % buffer.copies() * buffer.rows;
            Region {
                rows: region.rows.start + before..region.rows.end + before,
                ..region.clone()
            }
        };
        let mut copies = Vec::new();
        let mut copy = |src: Region, dst: Region| {
            copies.push(OpKind::Copy { src, dst });
        };
        for region in reads.iter().filter(|region| !region.is_empty()) {
            let rows = self.read..self.read + region.rows.len();
            self.read = rows.end;
            copy(in_turn(region), self.own(SEEN, rows, region.cols.len()));
        }
        for region in writes.iter().filter(|region| !region.is_empty()) {
            let rows = self.written..self.written + region.rows.len();
            self.written = rows.end;
            copy(self.own(VALUES, rows, region.cols.len()), in_turn(region));
        }
        self.step(stream, at, copies);
    }

    fn own(&self, buffer: usize, rows: std::ops::Range<usize>, cols: usize) -> Region {
        Region {
            rank: self.plan.rank,
            buffer: BufferId(self.source.buffers.len() + buffer),
            rows,
            cols: 0..cols,
        }
    }

    /// Lets the steps at these ranks and streams go one after the other.
    fn conduct(&mut self, places: &[(usize, usize)]) {
        let conductor = self.stream();
        for &(rank, stream) in places {
            let [gate, done] = self.flags(stream);
            self.push(
                conductor,
                OpKind::Signal {
                    slot: gate,
                    to: vec![rank],
                },
            );
            self.push(
                conductor,
                OpKind::Wait {
                    slot: done,
                    from: vec![rank],
                    lag: 0,
                },
            );
        }
    }

    /// The plan, whose main stream ends last, and the values that it writes: no two the same on any ranks.
    fn finish(mut self, streams: usize) -> (Plan, Vec<u8>) {
        for stream in 1..self.plan.streams.len() {
            let event = self.event();
            self.push(stream, OpKind::Record { event });
            self.push(0, OpKind::WaitEvent { event });
        }
        let mut buffer = |name: &str, rows: usize, cols: usize| {
            self.plan.buffers.push(Buffer {
                name: name.into(),
                placement: Placement::Local,
                role: Role::Staging,
                dtype: DType::F32,
                rows,
                cols,
                alternating: false,
            });
        };
        buffer("values", self.written, self.width);
        buffer("seen", self.read, self.width);
        buffer("entry", 1, 1);
        buffer("entries", self.source.world, 1);
        let slots =
            (0..streams).flat_map(|stream| [format!("gate {stream}"), format!("done {stream}")]);
        self.plan.slots.extend(slots.map(|name| Slot { name }));
        let first = 1 + self.plan.rank * 1_000_000;
        let values = (0..self.written * self.width).map(|i| (first + i) as f32);
        (self.plan, values.flat_map(f32::to_ne_bytes).collect())
    }
}
