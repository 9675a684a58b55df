//! Who waits for whom when nothing moves any more.

use super::program::{NodeId, Program};
use super::report::{Awaited, Blockage, Violation};
use super::run::{Blocked, Run};

/// The deadlock in which the run ended, if it did.
pub(super) fn deadlock(program: &Program<'_>, run: &Run) -> Option<Violation> {
    let first = run.blocked.first()?;
    let mut chain: Vec<NodeId> = vec![first.node];
    let mut closes_at = None;
    while let Some(next) = chain
        .last()
        .and_then(|&id| run.blocked.iter().find(|b| b.node == id))
        .and_then(|blocked| after(program, run, blocked))
    {
        closes_at = chain.iter().position(|&id| id == next);
        if closes_at.is_some() {
            break;
        }
        chain.push(next);
    }
    let blockage = |blocked: &Blocked| blockage(program, run, blocked);
    Some(Violation::Deadlock {
        blocked: run.blocked.iter().map(blockage).collect(),
        chain: chain
            .iter()
            .filter_map(|&id| run.blocked.iter().find(|b| b.node == id))
            .map(blockage)
            .collect(),
        closes_at,
    })
}

/// The blocked step after which stands what `blocked` waits for. Of several things the one that nobody ever
/// does comes first.
fn after(program: &Program<'_>, run: &Run, blocked: &Blocked) -> Option<NodeId> {
    let node = &program.nodes[blocked.node];
    if node.absent.is_some() {
        return None;
    }
    let ran = |id: NodeId| run.position[id].is_some();
    let mut providers = Vec::new();
    for &((slot, src, dst), needs, sees) in &blocked.flags {
        let to_come = (0..program.nodes.len()).filter(|&id| {
            let node = &program.nodes[id];
            let signals = |(s, to): (_, &[usize])| s == slot && to.contains(&dst);
            node.rank == src && !ran(id) && node.signal.is_some_and(signals)
        });
        let mut value = sees;
        let mut provider = None;
        for id in to_come {
            let times = |(_, to): (_, &[usize])| to.iter().filter(|&&t| t == dst).count();
            value += program.nodes[id].signal.map_or(0, times);
            if value >= needs {
                provider = Some(id);
                break;
            }
        }
        providers.push(provider?);
    }
    providers.extend(node.entries.iter().copied().filter(|&id| !ran(id)));
    let mut step = *providers.first()?;
    while let Some(&pred) = program.nodes[step].preds.iter().find(|&&p| !ran(p)) {
        step = pred;
    }
    Some(step)
}

fn blockage(program: &Program<'_>, run: &Run, blocked: &Blocked) -> Blockage {
    let node = &program.nodes[blocked.node];
    let flags = blocked
        .flags
        .iter()
        .map(|&(key, needs, sees)| Awaited::Signal {
            flag: program.flag(key),
            needs,
            sees,
        });
    let missing = node
        .entries
        .iter()
        .filter(|&&id| run.position[id].is_none())
        .map(|&id| program.nodes[id].rank);
    let entries = missing
        .chain(node.absent)
        .map(|rank| Awaited::Entry { rank });
    Blockage {
        step: program.step(blocked.node),
        awaits: flags.chain(entries).collect(),
    }
}
