//! Whether the calls of a schedule whose buffers alternate can follow each other.

use super::order::HappensBefore;
use super::program::{NodeId, Program, Site};
use super::report::Violation;
use std::collections::HashMap;

/// Ranks of a node that may leave a call before a peer has entered it, where a buffer alternates.
///
/// What alternates is used by every second call. Let *x* be an access of call *i* by any rank, and *y* one of
/// call *i* + 2 by rank *p*, to the memory of any rank. *x* precedes the exit of its rank *r* from call *i*
/// and so *r*'s entry into call *i* + 1. If *p* does not leave call *i* + 1 before *r* has entered it, *x*
/// precedes *y*, whatever rows they touch and whatever M the three calls have.
pub(super) fn unheard(program: &Program<'_>, order: &HappensBefore<'_>) -> Vec<Violation> {
    let alternating = |rank: usize| {
        let mut buffers = program.plans[rank].buffers.iter();
        buffers.find(|b| b.alternating).map(|b| b.name.clone())
    };
    let mut bounds: HashMap<(usize, Site), NodeId> = HashMap::new();
    for (id, node) in program.nodes.iter().enumerate() {
        if node.call == 0 && matches!(node.site, Site::CallerWrites | Site::CallerReads) {
            bounds.insert((node.rank, node.site), id);
        }
    }
    let mut found = Vec::new();
    for (rank, plan) in program.plans.iter().enumerate() {
        let Some(buffer) = alternating(rank) else {
            continue;
        };
        for peer in plan.node_of(rank).filter(|&peer| peer != rank) {
            let entry = bounds.get(&(peer, Site::CallerWrites));
            let exit = bounds.get(&(rank, Site::CallerReads));
            let is_ordered = match (entry, exit) {
                // What never ran is a deadlock's to report.
                (Some(&entry), Some(&exit)) => order.before(entry, exit) || !order.ran(exit),
                _ => false,
            };
            if !is_ordered {
                let buffer = buffer.clone();
                found.push(Violation::Unheard { rank, peer, buffer });
            }
        }
    }
    found
}
