//! What makes a call closed: see [`Checked::is_closed`](crate::check::Checked::is_closed).

use crate::plan::{Effect, Op, OpKind, Plan, Slot, SlotId, StreamId};
use std::collections::BTreeSet;

/// What was changed in the plans of all ranks, so that no peer touches a rank's memory before the rank has
/// entered the call, or after it has left.
///
/// A *credit* is a signal that a peer waits for in its next call: "you may use my memory again", or "I have
/// used yours". The rank's next call may be one of another schedule, which has other things in that memory.
/// So credits move within their call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Closing {
    /// Nothing: the algorithm sees to it.
    AsBuilt,
    /// Credits are grants: signals at the beginning of the call, "I have entered". The slot is called
    /// `NAME.grant`.
    Grants,
    /// Credits are acknowledgements: waited for at the end of the call in which they are given. The slot is
    /// called `NAME.ack`.
    Acknowledgements,
    /// The call begins with a barrier: every rank signals all others of its node that it has `entered`, then
    /// waits for all of them.
    Barrier,
}

impl Closing {
    /// All of them, the cheapest first.
    pub(super) const ALL: [Closing; 4] = [
        Closing::AsBuilt,
        Closing::Grants,
        Closing::Acknowledgements,
        Closing::Barrier,
    ];

    /// Whether the plans of a schedule may be changed so, at every M or none.
    ///
    /// A kernel that counts its calls has flags of its own, as many as M asks for. The number that a slot of
    /// one more flag has at one M could be that of such a flag at another.
    pub(super) fn is_possible(self, plans: &[Plan]) -> bool {
        let mut ops = plans.iter().flat_map(|plan| &plan.ops);
        let counts = |op: &Op| match &op.kind {
            OpKind::Kernel { kernel, .. } => kernel.counts_calls(),
            _ => false,
        };
        self != Closing::Barrier || !ops.any(counts)
    }

    /// Changes the plans of all ranks.
    pub(super) fn apply(self, plans: &mut [Plan], copies: &[Copies]) {
        let credits = credits(plans);
        for (plan, copies) in plans.iter_mut().zip(copies) {
            match self {
                Closing::AsBuilt => {}
                Closing::Grants => grant(plan, &credits),
                Closing::Acknowledgements => acknowledge(plan, &credits, copies.last),
                Closing::Barrier => barrier(plan, copies.first),
            }
        }
    }
}

/// How many copies between the caller's memory and staging a plan begins and ends with. They touch this
/// rank's memory alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) first: usize,
    pub(super) last: usize,
}

/// The slots of credits that operations of the plans alone use. They follow from the plans of all ranks.
fn credits(plans: &[Plan]) -> BTreeSet<SlotId> {
    let (mut credits, mut of_kernels) = (BTreeSet::new(), BTreeSet::new());
    for op in plans.iter().flat_map(|plan| &plan.ops) {
        match &op.kind {
            OpKind::Wait { slot, lag, .. } if *lag > 0 => {
                credits.insert(*slot);
            }
            OpKind::Kernel { lanes, .. } => {
                let slots = lanes.iter().flatten().filter_map(|effect| match effect {
                    Effect::Signal { slot, .. } | Effect::Wait { slot, .. } => Some(*slot),
                    _ => None,
                });
                of_kernels.extend(slots);
            }
            _ => {}
        }
    }
    &credits - &of_kernels
}

/// Takes the operations of a kind out of the plan, and puts them on stream 0.
fn take(plan: &mut Plan, is_taken: impl Fn(&OpKind) -> bool) -> Vec<Op> {
    let ops = std::mem::take(&mut plan.ops);
    let (mut taken, rest): (Vec<Op>, Vec<Op>) = ops.into_iter().partition(|op| is_taken(&op.kind));
    plan.ops = rest;
    for op in &mut taken {
        op.stream = StreamId::MAIN;
    }
    taken
}

fn in_this_call(op: &mut Op, credits: &BTreeSet<SlotId>) {
    match &mut op.kind {
        OpKind::Wait { slot, lag, .. } if credits.contains(slot) => *lag = 0,
        _ => {}
    }
}

fn rename(plan: &mut Plan, credits: &BTreeSet<SlotId>, suffix: &str) {
    for &SlotId(slot) in credits {
        plan.slots[slot].name += suffix;
    }
}

/// All signals of credits come first, before any stream is forked. Their waits have no lag any more.
fn grant(plan: &mut Plan, credits: &BTreeSet<SlotId>) {
    rename(plan, credits, ".grant");
    let mut first = take(
        plan,
        |kind| matches!(kind, OpKind::Signal { slot, .. } if credits.contains(slot)),
    );
    plan.ops.iter_mut().for_each(|op| in_this_call(op, credits));
    first.append(&mut plan.ops);
    plan.ops = first;
}

/// All waits for credits come last, after all streams have joined, but for the copies of outputs.
fn acknowledge(plan: &mut Plan, credits: &BTreeSet<SlotId>, copies: usize) {
    rename(plan, credits, ".ack");
    let mut last = take(
        plan,
        |kind| matches!(kind, OpKind::Wait { slot, .. } if credits.contains(slot)),
    );
    last.iter_mut().for_each(|op| in_this_call(op, credits));
    let end = plan.ops.len() - copies;
    plan.ops.splice(end..end, last);
}

/// The copies of inputs need not wait for peers.
fn barrier(plan: &mut Plan, copies: usize) {
    let slot = SlotId(plan.slots.len());
    plan.slots.push(Slot {
        name: "entered".into(),
    });
    let node = plan.node_of(plan.rank);
    let place = plan.rank - node.start;
    // The next rank first, as all signals go.
    let peers: Vec<usize> = (1..node.len())
        .map(|step| node.start + (place + step) % node.len())
        .collect();
    if peers.is_empty() {
        return;
    }
    let main = |kind| Op {
        stream: StreamId::MAIN,
        kind,
    };
    let (to, from) = (peers.clone(), peers);
    let wait = OpKind::Wait { slot, from, lag: 0 };
    plan.ops.insert(copies, main(wait));
    plan.ops.insert(0, main(OpKind::Signal { slot, to }));
}
