//! What the plans of all ranks must agree on before they can be run together.

use super::report::{Violation, Word};
use crate::plan::{Effect, OpKind, Placement, Plan, SlotId};
use crate::show;
use std::collections::BTreeMap;

/// The ways in which the plans do not belong together. Nothing else can be said while there are any.
pub(super) fn disagreements(plans: &[Plan]) -> Vec<Violation> {
    let disagreement = |what: String| vec![Violation::Disagreement { what }];
    let Some(first) = plans.first() else {
        return disagreement("there are no plans".into());
    };
    if plans.iter().any(|p| p.world != plans.len()) {
        let worlds: Vec<usize> = plans.iter().map(|p| p.world).collect();
        return disagreement(format!(
            "{} plans for worlds of {worlds:?} ranks",
            plans.len()
        ));
    }
    let mut ranks: Vec<usize> = plans.iter().map(|p| p.rank).collect();
    ranks.sort_unstable();
    if ranks.iter().enumerate().any(|(i, &rank)| i != rank) {
        return disagreement(format!("the plans are those of ranks {ranks:?}"));
    }

    let mut found = Vec::new();
    for plan in &plans[1..] {
        let mut differ = |what: String| found.push(Violation::Disagreement { what });
        let pair = format!("ranks {} and {}", first.rank, plan.rank);
        if plan.name != first.name {
            differ(format!("{pair} run `{}` and `{}`", first.name, plan.name));
        }
        if plan.slots != first.slots {
            differ(format!("{pair} have different rows in their signal pads"));
        }
        for id in 0..first.buffers.len().max(plan.buffers.len()) {
            let (one, other) = (first.buffers.get(id), plan.buffers.get(id));
            let shared = [one, other]
                .into_iter()
                .flatten()
                .any(|b| b.placement != Placement::Local);
            if shared && one != other {
                let say = |b: Option<&crate::plan::Buffer>| {
                    b.map_or("nothing".to_owned(), |b| {
                        format!(
                            "{} {} `{}` {}[{}, {}]",
                            b.placement, b.role, b.name, b.dtype, b.rows, b.cols
                        )
                    })
                };
                differ(format!(
                    "{pair} have different symmetric buffers %b{id}: {} and {}",
                    say(one),
                    say(other)
                ));
            }
        }
    }
    found
}

/// Words whose signals and waits of one call are not equally many: their counters drift apart from call to call.
pub(super) fn unmatched_signals(plans: &[&Plan]) -> Vec<Violation> {
    let mut counts: BTreeMap<(SlotId, usize, usize), (usize, usize)> = BTreeMap::new();
    let mut signalled = |src: usize, slot: SlotId, to: &[usize], waited: bool| {
        for &peer in to {
            let count = if waited {
                &mut counts.entry((slot, peer, src)).or_default().1
            } else {
                &mut counts.entry((slot, src, peer)).or_default().0
            };
            *count += 1;
        }
    };
    for plan in plans {
        for op in &plan.ops {
            match &op.kind {
                OpKind::Signal { slot, to } => signalled(plan.rank, *slot, to, false),
                OpKind::Wait { slot, from, .. } => signalled(plan.rank, *slot, from, true),
                OpKind::Kernel { lanes, .. } => {
                    for effect in lanes.iter().flatten() {
                        match effect {
                            Effect::Signal { slot, to } => signalled(plan.rank, *slot, to, false),
                            Effect::Wait { slot, from, .. } => {
                                signalled(plan.rank, *slot, from, true);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }
    counts
        .into_iter()
        .filter(|(_, (signals, waits))| signals != waits)
        .map(
            |((slot, src, dst), (signals, waits))| Violation::UnmatchedSignal {
                word: Word {
                    dst,
                    slot,
                    src,
                    name: show::slot_name(plans[src], slot).to_owned(),
                },
                signals,
                waits,
            },
        )
        .collect()
}

/// The first collective, if any, that is not the same on all ranks.
pub(super) fn mismatched_collectives(plans: &[&Plan]) -> Option<Violation> {
    let sequences: Vec<Vec<String>> = plans.iter().map(|p| collectives(p)).collect();
    let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).find_map(|index| {
        let mine = sequences[0].get(index);
        let other = sequences.iter().position(|s| s.get(index) != mine)?;
        let say = |s: Option<&String>| s.cloned().unwrap_or_else(|| "none".into());
        Some(Violation::CollectiveMismatch {
            index,
            ranks: [0, other],
            calls: [say(mine), say(sequences[other].get(index))],
        })
    })
}

/// What has to be the same on all ranks of each collective.
fn collectives(plan: &Plan) -> Vec<String> {
    let describe = |kind: &OpKind| match kind {
        OpKind::AllGather { dst, transport, .. } => {
            let dtype = plan.buffer(dst.buffer).map(|b| b.dtype);
            Some(format!(
                "all-gather of {}x{} {} by {transport}",
                dst.rows.len(),
                dst.cols.len(),
                dtype.map_or("?", |d| d.name())
            ))
        }
        _ => None,
    };
    plan.ops
        .iter()
        .filter_map(|op| describe(&op.kind))
        .collect()
}
