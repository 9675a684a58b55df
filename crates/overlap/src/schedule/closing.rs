//! What makes a call closed: see [`Checked::is_closed`](crate::check::Checked::is_closed).

use crate::plan::{Effect, Op, OpKind, Plan, Slot, SlotId, StreamId};
use std::collections::BTreeSet;

/// What the plans of all ranks begin with, so that no peer touches a rank's memory before the rank has
/// entered the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entry {
    /// Nothing: the algorithm sees to it.
    Open,
    /// Grants. A credit lets a peer write as soon as the rank's *previous* call allows it, which may have
    /// been one of another schedule. As a grant the same signal comes first in a call and is waited for in
    /// that call: "I have entered, and all before is over".
    Grants,
    /// A barrier: every rank signals all others of its node, then waits for all of them.
    Barrier,
}

impl Entry {
    /// All of them, the cheapest first.
    pub(super) const ALL: [Entry; 3] = [Entry::Open, Entry::Grants, Entry::Barrier];

    /// Changes the plans of all ranks. The first `copies_in[rank]` operations of each copy inputs to where
    /// peers read them, and need not wait for peers.
    pub(super) fn apply(self, plans: &mut [Plan], copies_in: &[usize]) {
        match self {
            Entry::Open => {}
            Entry::Grants => grant(plans),
            Entry::Barrier => plans
                .iter_mut()
                .zip(copies_in)
                .for_each(|(plan, &copies)| barrier(plan, copies)),
        }
    }
}

/// Turns every credit into a grant, if operations of the plans alone use its slot.
///
/// All signals of the slot move to the beginning of the call, before any stream is forked, and its waits have
/// no lag any more. Which slots these are follows from the plans of all ranks.
fn grant(plans: &mut [Plan]) {
    let ops = || plans.iter().flat_map(|plan| &plan.ops);
    let credits: BTreeSet<SlotId> = ops()
        .filter_map(|op| match op.kind {
            OpKind::Wait { slot, lag, .. } if lag > 0 => Some(slot),
            _ => None,
        })
        .collect();
    let of_kernels: BTreeSet<SlotId> = ops()
        .filter_map(|op| match &op.kind {
            OpKind::Kernel { lanes, .. } => Some(lanes),
            _ => None,
        })
        .flatten()
        .flatten()
        .filter_map(|effect| match effect {
            Effect::Signal { slot, .. } | Effect::Wait { slot, .. } => Some(*slot),
            _ => None,
        })
        .collect();
    let credits = &credits - &of_kernels;
    for plan in plans {
        for &SlotId(slot) in &credits {
            plan.slots[slot].name += ".grant";
        }
        let is_grant =
            |op: &Op| matches!(&op.kind, OpKind::Signal { slot, .. } if credits.contains(slot));
        let (mut first, mut rest): (Vec<Op>, Vec<Op>) = std::mem::take(&mut plan.ops)
            .into_iter()
            .partition(is_grant);
        for op in &mut first {
            op.stream = StreamId::MAIN;
        }
        for op in &mut rest {
            match &mut op.kind {
                OpKind::Wait { slot, lag, .. } if credits.contains(slot) => *lag = 0,
                _ => {}
            }
        }
        first.append(&mut rest);
        plan.ops = first;
    }
}

fn barrier(plan: &mut Plan, copies_in: usize) {
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
    plan.ops.insert(copies_in, main(wait));
    plan.ops.insert(0, main(OpKind::Signal { slot, to }));
}
