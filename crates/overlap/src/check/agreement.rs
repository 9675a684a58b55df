//! What the plans of all ranks must agree on before they can be run together.

use super::report::{Flag, Violation};
use crate::plan::{Effect, OpKind, Placement, Plan, SlotId};
use crate::show;
use std::collections::BTreeMap;

/// How the plans differ where they must match. If they do, nothing else can be checked.
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
        if plan.node_size != first.node_size {
            differ(format!("{pair} have nodes of different sizes"));
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
                        format!("{} {} `{}` {}", b.placement, b.role, b.name, b.extent())
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

/// Flags whose signals and waits of one call are not equally many: their counters drift apart from call to
/// call.
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
                flag: Flag {
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

/// The first collective, if any, that is not the same on two ranks that both take part.
///
/// Of two ranks the collectives that both take part in must be the same in the same order: with that, no two
/// collectives can wait for each other.
pub(super) fn mismatched_collectives(plans: &[&Plan]) -> Option<Violation> {
    let lists: Vec<Vec<Entered>> = plans.iter().map(|p| collectives(p)).collect();
    (0..plans.len()).find_map(|one| {
        (one + 1..plans.len()).find_map(|other| mismatch(&lists[one], &lists[other], [one, other]))
    })
}

/// The first difference between what rank `one` enters together with `other`, and the other with it.
fn mismatch(mine: &[Entered], theirs: &[Entered], [one, other]: [usize; 2]) -> Option<Violation> {
    let with = |list: &[Entered], peer: usize| -> Vec<String> {
        let both = list.iter().filter(|entered| entered.ranks.contains(&peer));
        both.map(|entered| entered.what.clone()).collect()
    };
    let [mine, theirs] = [with(mine, other), with(theirs, one)];
    let index = (0..mine.len().max(theirs.len())).find(|&i| mine.get(i) != theirs.get(i))?;
    let say = |list: &[String]| list.get(index).cloned().unwrap_or_else(|| "none".into());
    Some(Violation::CollectiveMismatch {
        index,
        ranks: [one, other],
        calls: [say(&mine), say(&theirs)],
    })
}

/// A collective of a plan: who takes part, and what has to be the same on all of them.
struct Entered {
    ranks: Vec<usize>,
    what: String,
}

fn collectives(plan: &Plan) -> Vec<Entered> {
    let entered = |kind: &OpKind| match kind {
        OpKind::Collective { ranks, .. } => Some(Entered {
            ranks: ranks.clone(),
            what: agreed(plan, kind)?,
        }),
        _ => None,
    };
    plan.ops.iter().filter_map(|op| entered(&op.kind)).collect()
}

/// What has to be the same on all ranks that take part in a collective; `None` for other operations.
pub(crate) fn agreed(plan: &Plan, kind: &OpKind) -> Option<String> {
    let OpKind::Collective {
        collective,
        src,
        dst,
        ranks,
        transport,
        then,
    } = kind
    else {
        return None;
    };
    let dtype = plan.buffer(dst.buffer).map(|b| b.dtype);
    let mut what = format!(
        "{collective} of {}x{} {} by {transport}",
        collective.all_rows(src, dst),
        dst.cols.len(),
        dtype.map_or("?", |d| d.name())
    );
    if let Some(norm) = then {
        // The same elements of buffers that each rank has for itself: their names say which.
        let [residual, weight] =
            [&norm.residual, &norm.weight].map(|region| show::own_region(plan, region));
        what += &format!(
            ", + {residual}, RMSNorm * {weight}, epsilon {}{}",
            norm.epsilon,
            norm.quantized.as_ref().map_or("", |_| ", in e4m3 too")
        );
    }
    if !ranks.iter().copied().eq(0..plan.world) {
        what += &format!(" among {ranks:?}");
    }
    Some(what)
}
