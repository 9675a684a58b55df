//! The plans of all ranks, unrolled over their calls into one graph of steps.

use super::access::{Access, AccessKind};
use crate::plan::{Buffer, Effect, Op, OpKind, Plan, Region, Role, SlotId};
use std::collections::{HashMap, HashSet};

/// Index of a step.
pub(crate) type NodeId = usize;

/// Where a step stands in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Before a call: the caller overwrites its inputs, and what it has read of the outputs.
    CallerWrites,
    /// An operation that is one step.
    Op(usize),
    /// The beginning of an operation of several steps: a kernel or a collective.
    Begin(usize),
    /// One effect of a kernel.
    Effect {
        /// The operation.
        op: usize,
        /// The lane.
        lane: usize,
        /// Its place in the lane.
        index: usize,
    },
    /// The end of an operation of several steps.
    End(usize),
    /// After a call: the caller reads its outputs.
    CallerReads,
}

/// A wait for one signal from each of some ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) slot: SlotId,
    pub(crate) from: &'a [usize],
    pub(crate) lag: u32,
}

/// A step: it runs once everything in `preds` has, and its wait, if it has one, is satisfied.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    pub(crate) rank: usize,
    /// Counted from 0.
    pub(crate) call: usize,
    pub(crate) site: Site,
    /// Steps of the same rank.
    pub(crate) preds: Vec<NodeId>,
    /// At the end of a collective: the beginnings on all ranks.
    pub(crate) entries: Vec<NodeId>,
    /// At the end of a collective: a rank that never enters it.
    pub(crate) absent: Option<usize>,
    pub(crate) wait: Option<Wait<'a>>,
    pub(crate) signal: Option<(SlotId, &'a [usize])>,
}

/// One rank's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) begin: NodeId,
    pub(crate) end: NodeId,
    /// Who takes part.
    pub(crate) ranks: &'a [usize],
}

/// What a rank writes of its own memory between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// The caller's operands.
    Operands,
    /// Whatever it has, save what alternates: other calls have the same staging memory.
    Everything,
}

impl Boundary {
    fn writes(self, buffer: &Buffer) -> bool {
        match (buffer.role, self) {
            (Role::Input | Role::Output, _) => true,
            (Role::Staging, Boundary::Everything) => !buffer.alternating,
            (Role::Staging | Role::Weight, _) => false,
        }
    }
}

/// All steps of all ranks.
pub(crate) struct Program<'a> {
    pub(super) boundary: Boundary,
    /// Indexed by rank.
    pub(crate) plans: Vec<&'a Plan>,
    pub(crate) nodes: Vec<Node<'a>>,
    pub(super) accesses: Vec<Access>,
    /// Collectives of each rank in the order of its list.
    pub(crate) collectives: Vec<Vec<Entry<'a>>>,
    /// Steps of the first call that must follow its start or precede its end: the first and last of each
    /// stream.
    pub(crate) stream_ends: Vec<StreamEnds>,
}

/// The first and the last step of a stream other than the caller's in the first call, and the call's own.
pub(crate) struct StreamEnds {
    pub(crate) rank: usize,
    pub(crate) stream: usize,
    pub(crate) start: NodeId,
    pub(crate) first: NodeId,
    pub(crate) last: NodeId,
    pub(crate) end: NodeId,
}

/// The steps of `calls` calls of `plans`; saturates.
pub(crate) fn steps_of(plans: &[Plan], calls: usize) -> usize {
    let of_a_call = plans.iter().map(Plan::steps).fold(0, usize::saturating_add);
    of_a_call.saturating_mul(calls)
}

impl<'a> Program<'a> {
    /// `plans` is indexed by rank and has no faults: the plans of all ranks, or of the first node's where
    /// those of all nodes are alike. A rank of the first node then enters for those in its place.
    pub(crate) fn unroll(plans: Vec<&'a Plan>, calls: usize) -> Self {
        Self::between(plans, calls, Boundary::Operands)
    }

    /// One call of one rank, whose collectives nobody enters.
    pub(crate) fn of_rank(plan: &'a Plan) -> Self {
        let mut program = Self::of(vec![plan; plan.world], plan.world, Boundary::Operands);
        program.call(plan, 0, &mut vec![None; plan.streams.len()]);
        program
    }

    /// Without steps.
    fn of(plans: Vec<&'a Plan>, world: usize, boundary: Boundary) -> Self {
        Program {
            boundary,
            nodes: Vec::new(),
            accesses: Vec::new(),
            collectives: vec![Vec::new(); world],
            stream_ends: Vec::new(),
            plans,
        }
    }

    /// The same, with what a rank may do between calls.
    pub(super) fn between(plans: Vec<&'a Plan>, calls: usize, boundary: Boundary) -> Self {
        let mut program = Self::of(plans.clone(), plans.len(), boundary);
        for plan in plans {
            let mut streams: Vec<Option<NodeId>> = vec![None; plan.streams.len()];
            for call in 0..calls {
                program.call(plan, call, &mut streams);
            }
        }
        program.enter_collectives();
        program
    }

    /// Whether `later` comes after `earlier` by the streams and events of their rank.
    pub(crate) fn follows(&self, later: NodeId, earlier: NodeId) -> bool {
        let mut seen = HashSet::from([later]);
        let mut open = vec![later];
        while let Some(id) = open.pop() {
            if id == earlier {
                return true;
            }
            // A step is numbered after its predecessors.
            let preds = self.nodes[id].preds.iter().copied();
            open.extend(preds.filter(|&p| p >= earlier && seen.insert(p)));
        }
        false
    }

    /// Adds one call of one rank; `streams` holds the last step of each stream.
    fn call(&mut self, plan: &'a Plan, call: usize, streams: &mut [Option<NodeId>]) {
        let start = self.caller(plan, call, Site::CallerWrites, streams);
        let mut events: Vec<Option<NodeId>> = vec![None; plan.events];
        let mut ends: Vec<Option<(NodeId, NodeId)>> = vec![None; plan.streams.len()];
        for (index, Op { stream, kind }) in plan.ops.iter().enumerate() {
            let mut preds: Vec<NodeId> = streams[stream.0].into_iter().collect();
            if let OpKind::WaitEvent { event } = kind {
                preds.extend(events[event.0]);
            }
            let (first, last) = self.op(plan, call, index, kind, preds);
            if let OpKind::Record { event } = kind {
                events[event.0] = Some(last);
            }
            streams[stream.0] = Some(last);
            let begin = ends[stream.0].map_or(first, |(begin, _)| begin);
            ends[stream.0] = Some((begin, last));
        }
        let end = self.caller(plan, call, Site::CallerReads, streams);
        if call == 0 {
            let others = ends.iter().enumerate().skip(1);
            self.stream_ends.extend(others.filter_map(|(stream, ends)| {
                ends.map(|(first, last)| StreamEnds {
                    rank: plan.rank,
                    stream,
                    start,
                    first,
                    last,
                    end,
                })
            }));
        }
    }

    /// The caller's own work between calls, on the main stream.
    fn caller(
        &mut self,
        plan: &'a Plan,
        call: usize,
        site: Site,
        streams: &mut [Option<NodeId>],
    ) -> NodeId {
        // Its outputs are the caller's own between calls.
        let boundary = self.boundary;
        let (touches, kind): (&dyn Fn(&Buffer) -> bool, _) = match site {
            Site::CallerWrites => (&|b| boundary.writes(b), AccessKind::Write),
            _ => (&|b| b.role == Role::Output, AccessKind::Read),
        };
        let node = self.node(plan, call, site, streams[0].into_iter().collect());
        streams[0] = Some(node);
        for (id, buffer) in plan.buffers.iter().enumerate() {
            if touches(buffer) {
                let whole = Region {
                    rank: plan.rank,
                    buffer: crate::plan::BufferId(id),
                    rows: 0..buffer.rows,
                    cols: 0..buffer.cols,
                };
                self.access(node, node, kind, whole);
            }
        }
        node
    }

    /// Adds the steps of one operation and gives the first and the last.
    fn op(
        &mut self,
        plan: &'a Plan,
        call: usize,
        index: usize,
        kind: &'a OpKind,
        preds: Vec<NodeId>,
    ) -> (NodeId, NodeId) {
        use AccessKind::{Discard, Read, Write};
        if let OpKind::Kernel { lanes, .. } = kind {
            return self.kernel(plan, call, index, lanes, preds);
        }
        let (begin, end) = if let OpKind::Collective { ranks, .. } = kind {
            let begin = self.node(plan, call, Site::Begin(index), preds);
            let end = self.node(plan, call, Site::End(index), vec![begin]);
            self.collectives[plan.rank].push(Entry { begin, end, ranks });
            (begin, end)
        } else {
            let node = self.node(plan, call, Site::Op(index), preds);
            (node, node)
        };
        for region in kind.reads() {
            self.access(begin, end, Read, region);
        }
        for region in kind.writes(plan.node_of(plan.rank)) {
            self.access(begin, end, Write, region);
        }
        if let Some(region) = kind.discards() {
            self.access(begin, end, Discard, region.clone());
        }
        let node = begin;
        match kind {
            OpKind::Signal { slot, to } => self.nodes[node].signal = Some((*slot, to)),
            OpKind::Wait { slot, from, lag } => {
                let (slot, lag) = (*slot, *lag);
                self.nodes[node].wait = Some(Wait { slot, from, lag });
            }
            _ => {}
        }
        (begin, end)
    }

    fn kernel(
        &mut self,
        plan: &'a Plan,
        call: usize,
        op: usize,
        lanes: &'a [Vec<Effect>],
        preds: Vec<NodeId>,
    ) -> (NodeId, NodeId) {
        use AccessKind::{Read, Write};
        let begin = self.node(plan, call, Site::Begin(op), preds);
        let mut last_of_lanes = vec![begin];
        for (lane, effects) in lanes.iter().enumerate() {
            let mut last = begin;
            for (index, effect) in effects.iter().enumerate() {
                let mut preds = vec![last];
                if let Effect::After(lanes) = effect {
                    // The kernel's beginning has the first place.
                    preds.extend(lanes.iter().map(|lane| last_of_lanes[lane + 1]));
                }
                let node = self.node(plan, call, Site::Effect { op, lane, index }, preds);
                match effect {
                    Effect::Read(region) => self.access(node, node, Read, region.clone()),
                    Effect::Write(region) => self.access(node, node, Write, region.clone()),
                    Effect::WriteMulticast(region) => {
                        for rank in plan.node_of(plan.rank) {
                            self.access(node, node, Write, region.on(rank));
                        }
                    }
                    Effect::Signal { slot, to } => self.nodes[node].signal = Some((*slot, to)),
                    Effect::Wait { slot, from, lag } => {
                        let (slot, lag) = (*slot, *lag);
                        self.nodes[node].wait = Some(Wait { slot, from, lag });
                    }
                    Effect::After(_) => {}
                }
                last = node;
            }
            last_of_lanes.push(last);
        }
        let end = self.node(plan, call, Site::End(op), last_of_lanes);
        (begin, end)
    }

    fn node(&mut self, plan: &Plan, call: usize, site: Site, preds: Vec<NodeId>) -> NodeId {
        self.nodes.push(Node {
            rank: plan.rank,
            call,
            site,
            preds,
            entries: Vec::new(),
            absent: None,
            wait: None,
            signal: None,
        });
        self.nodes.len() - 1
    }

    fn access(&mut self, begin: NodeId, end: NodeId, kind: AccessKind, region: Region) {
        if !region.is_empty() {
            let node = &self.nodes[begin];
            let buffer = self.plans[node.rank].buffer(region.buffer);
            self.accesses.push(Access {
                begin,
                end,
                kind,
                turn: node.call % buffer.map_or(1, Buffer::copies),
                region,
            });
        }
    }

    /// The i-th collective of some ranks meets the i-th of the same ranks on each of them: none ends before
    /// all have begun.
    fn enter_collectives(&mut self) {
        for mine in &self.collectives {
            let mut before: HashMap<&[usize], usize> = HashMap::new();
            for entry in mine {
                let index = before.entry(entry.ranks).or_default();
                for &peer in entry.ranks {
                    let theirs = &self.collectives[peer % self.collectives.len()];
                    let same = |e: &&Entry<'_>| e.ranks == entry.ranks;
                    match theirs.iter().filter(same).nth(*index) {
                        Some(theirs) => self.nodes[entry.end].entries.push(theirs.begin),
                        None => self.nodes[entry.end].absent = Some(peer),
                    }
                }
                *index += 1;
            }
        }
    }
}
