//! Running the steps.
//!
//! The program is a monotone dataflow: a step that can run stays able to run until it has, since flags only
//! grow. So whichever ready step is taken first, the same steps get to run, and one greedy run finds every
//! deadlock.

use super::program::{NodeId, Program};
use crate::plan::SlotId;
use std::collections::{BTreeMap, VecDeque};

/// A flag of a signal pad: slot, source rank, destination rank.
pub(super) type FlagKey = (SlotId, usize, usize);

/// What happened on one flag, in the order in which it ran.
#[derive(Default)]
pub(super) struct FlagLog {
    /// The n-th entry stored the value n + 1.
    pub(super) signals: Vec<NodeId>,
    pub(super) waits: Vec<NodeId>,
    /// Waits that were reached and the values that they need.
    pending: Vec<(NodeId, usize)>,
}

/// A step that was reached and never ran.
pub(super) struct Blocked {
    pub(super) node: NodeId,
    /// Flags whose value is too low: which, what it needs, what it saw.
    pub(super) flags: Vec<(FlagKey, usize, usize)>,
}

/// The outcome of a run.
pub(super) struct Run {
    /// The steps that ran, in an order in which they could.
    pub(super) order: Vec<NodeId>,
    /// Place of each step in `order`.
    pub(super) position: Vec<Option<usize>>,
    /// For each step, the steps it waited for: its predecessors, the entries of its collective, the signals
    /// it needed.
    pub(super) preds: Vec<Vec<NodeId>>,
    pub(super) flags: BTreeMap<FlagKey, FlagLog>,
    pub(super) blocked: Vec<Blocked>,
}

/// Runs the program as far as it goes.
pub(super) fn run(program: &Program<'_>) -> Run {
    let count = program.nodes.len();
    let mut succs = vec![Vec::new(); count];
    let mut missing = vec![0; count];
    let mut preds = Vec::with_capacity(count);
    for (id, node) in program.nodes.iter().enumerate() {
        let all: Vec<NodeId> = node.preds.iter().chain(&node.entries).copied().collect();
        for &pred in &all {
            succs[pred].push(id);
        }
        // A rank that never enters a collective holds its end up for ever.
        missing[id] = all.len() + usize::from(node.absent.is_some());
        preds.push(all);
    }
    let mut runner = Runner {
        program,
        succs,
        missing,
        unmet: vec![0; count],
        ready: VecDeque::new(),
        run: Run {
            order: Vec::with_capacity(count),
            position: vec![None; count],
            preds,
            flags: BTreeMap::new(),
            blocked: Vec::new(),
        },
    };
    for id in 0..count {
        if runner.missing[id] == 0 {
            runner.reach(id);
        }
    }
    while let Some(id) = runner.ready.pop_front() {
        runner.step(id);
    }
    runner.run.blocked = runner.blocked();
    runner.run
}

struct Runner<'a, 'p> {
    program: &'a Program<'p>,
    succs: Vec<Vec<NodeId>>,
    /// Predecessors that have not run.
    missing: Vec<usize>,
    /// Flags that are too low for a wait that was reached.
    unmet: Vec<usize>,
    ready: VecDeque<NodeId>,
    run: Run,
}

impl Runner<'_, '_> {
    /// All predecessors of `id` have run.
    fn reach(&mut self, id: NodeId) {
        let node = &self.program.nodes[id];
        if let Some(wait) = node.wait {
            for &from in wait.from {
                let flag = self
                    .run
                    .flags
                    .entry((wait.slot, from, node.rank))
                    .or_default();
                flag.waits.push(id);
                let needs = flag.waits.len().saturating_sub(wait.lag as usize);
                if needs == 0 {
                    continue;
                }
                match flag.signals.get(needs - 1) {
                    Some(&signal) => self.run.preds[id].push(signal),
                    None => {
                        flag.pending.push((id, needs));
                        self.unmet[id] += 1;
                    }
                }
            }
        }
        if self.unmet[id] == 0 {
            self.ready.push_back(id);
        }
    }

    fn step(&mut self, id: NodeId) {
        self.run.position[id] = Some(self.run.order.len());
        self.run.order.push(id);
        let node = &self.program.nodes[id];
        if let Some((slot, to)) = node.signal {
            for &to in to {
                let flag = self.run.flags.entry((slot, node.rank, to)).or_default();
                flag.signals.push(id);
                let value = flag.signals.len();
                let (met, pending) = flag.pending.iter().partition(|(_, needs)| *needs <= value);
                flag.pending = pending;
                let met: Vec<(NodeId, usize)> = met;
                for (waiter, _) in met {
                    self.run.preds[waiter].push(id);
                    self.unmet[waiter] -= 1;
                    if self.unmet[waiter] == 0 {
                        self.ready.push_back(waiter);
                    }
                }
            }
        }
        for next in std::mem::take(&mut self.succs[id]) {
            self.missing[next] -= 1;
            if self.missing[next] == 0 {
                self.reach(next);
            }
        }
    }

    /// Steps whose predecessors on their own rank have all run, but which have not.
    fn blocked(&self) -> Vec<Blocked> {
        let ran = |id: &NodeId| self.run.position[*id].is_some();
        let stuck = |id: &NodeId| !ran(id) && self.program.nodes[*id].preds.iter().all(ran);
        (0..self.program.nodes.len())
            .filter(stuck)
            .map(|node| Blocked {
                node,
                flags: self
                    .run
                    .flags
                    .iter()
                    .flat_map(|(key, flag)| {
                        let mine = flag.pending.iter().filter(move |(id, _)| *id == node);
                        mine.map(|(_, needs)| (*key, *needs, flag.signals.len()))
                    })
                    .collect(),
            })
            .collect()
    }
}
