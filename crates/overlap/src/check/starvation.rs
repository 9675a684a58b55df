//! Launches that wait for peers while they hold SMs.

use super::order::HappensBefore;
use super::program::{NodeId, Program, Site};
use super::report::Violation;
use crate::plan::{Effect, OpKind};

/// Pairs of launches of one rank that both wait for peers on the device, and that nothing orders within a
/// call.
///
/// The blocks of such a launch stay on their SMs until the peers have sent what it waits for. If a device has
/// room for one of two, each rank may begin with another one, and all wait for ever. A kernel waits if its
/// lanes do; a collective of a library always does, for its ranks to enter. Two collectives in no fixed order
/// are reported as such. The waits of a plan itself take one block each, for which kernels that wait leave
/// room.
pub(super) fn unordered_waiters(
    program: &Program<'_>,
    order: &HappensBefore<'_>,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for rank in 0..program.plans.len() {
        let launches = waiters(program, rank);
        for (place, one) in launches.iter().enumerate() {
            for other in &launches[place + 1..] {
                let ran = [one, other]
                    .iter()
                    .all(|w| order.ran(w.begin) && order.ran(w.end));
                let ordered =
                    order.before(one.end, other.begin) || order.before(other.end, one.begin);
                if ran && !ordered && (one.is_kernel || other.is_kernel) {
                    let [first, second] = [one, other].map(|w| program.step(w.begin));
                    found.push(Violation::Starvation { first, second });
                }
            }
        }
    }
    found
}

struct Waiter {
    begin: NodeId,
    end: NodeId,
    is_kernel: bool,
}

/// The launches of the first call of `rank` that wait for peers.
fn waiters(program: &Program<'_>, rank: usize) -> Vec<Waiter> {
    let plan = program.plans[rank];
    let is_kernel = |op: usize| match &plan.ops[op].kind {
        OpKind::Kernel { lanes, .. } => {
            let waits = |effect: &Effect| matches!(effect, Effect::Wait { .. });
            lanes.iter().flatten().any(waits).then_some(true)
        }
        OpKind::Collective { ranks, .. } if ranks.len() > 1 => Some(false),
        _ => None,
    };
    let nodes = program.nodes.iter().enumerate();
    let mine = nodes.filter(|(_, node)| node.rank == rank && node.call == 0);
    let (mut begun, mut found) = (Vec::new(), Vec::new());
    for (id, node) in mine {
        match node.site {
            Site::Begin(op) => begun.push((op, id)),
            Site::End(op) => {
                let begin = begun.iter().find(|(begun, _)| *begun == op);
                let waiter = begin
                    .zip(is_kernel(op))
                    .map(|(&(_, begin), is_kernel)| Waiter {
                        begin,
                        end: id,
                        is_kernel,
                    });
                found.extend(waiter);
            }
            _ => {}
        }
    }
    found
}
