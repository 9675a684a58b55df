//! Reads of elements that nobody has written, or that hold anything since.

use super::access::{Access, AccessKind, by_copy};
use super::order::HappensBefore;
use super::program::{Program, Site};
use super::report::Violation;
use crate::plan::Role;
use crate::show;
use std::collections::HashSet;

/// Reads in the first call, of all but constant buffers, of elements that no write of that call can have
/// written before.
///
/// The first call stands for all: what a later one reads must be written again, since inputs change from call
/// to call. A write that nothing orders with the read is a race, and is not reported here a second time.
pub(super) fn unwritten(program: &Program<'_>, order: &HappensBefore<'_>) -> Vec<Violation> {
    let first_call = |a: &&&Access| program.nodes[a.begin].call == 0 && order.ran(a.begin);
    let mut reported = HashSet::new();
    let mut found = Vec::new();
    for ((rank, buffer, _), accesses) in by_copy(&program.accesses) {
        let role = program.plans[rank].buffer(buffer).map(|b| b.role);
        if matches!(role, None | Some(Role::Weight)) {
            continue;
        }
        let is_input = role == Some(Role::Input);
        let in_call: Vec<&Access> = accesses.iter().filter(first_call).copied().collect();
        for read in in_call.iter().filter(|a| !a.writes()) {
            let is = |kind| in_call.iter().filter(move |a| a.kind == kind);
            let writes = is(AccessKind::Write)
                .filter(|w| !order.before(read.end, w.begin))
                // What the caller leaves in an output is nobody's to read.
                .filter(|w| is_input || program.nodes[w.begin].site != Site::CallerWrites)
                // An operation does not feed itself, but a collective may read in place what lies there
                // already.
                .filter(|w| w.begin != read.begin);
            let mut missing = read.region.minus_all(writes.clone().map(|w| &w.region));
            // What is discarded before the read must be written in between.
            for discard in is(AccessKind::Discard).filter(|d| order.before(d.end, read.begin)) {
                let later = writes
                    .clone()
                    .filter(|w| order.before(discard.end, w.begin));
                let lost = read.region.intersection(&discard.region);
                missing.extend(
                    lost.iter()
                        .flat_map(|lost| lost.minus_all(later.clone().map(|w| &w.region))),
                );
            }
            let node = &program.nodes[read.begin];
            if !missing.is_empty() && reported.insert((node.rank, node.site, rank, buffer)) {
                let plan = program.plans[node.rank];
                found.push(Violation::Unwritten {
                    read: program.touch(read),
                    missing: missing.iter().map(|r| show::region(plan, r)).collect(),
                });
            }
        }
    }
    found
}
