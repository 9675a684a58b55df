//! Plans that were proved.

use super::program::Boundary;
use super::report::{Report, Violation};
use super::structure::{Fault, FaultKind};
use super::{DEFAULT_CALLS, Extent, examine};
use crate::plan::{OpKind, Plan};

/// The plans of all ranks of one problem, which [`check`](super::check()) proved.
///
/// Nothing else makes one: [`Checked::prove`] runs the proof, and [`Schedule`](crate::Schedule) keeps proofs
/// for plans of the same structure. So whoever asks for a `Checked` runs what was proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Indexed by rank.
    plans: Vec<Plan>,
    proof: Proof,
}

/// What was found of plans, and holds for all plans of the same structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) closed: bool,
}

impl Checked {
    /// Proves the plans of all ranks, which may come in any order.
    ///
    /// # Errors
    /// The report with all that is wrong, also that a kernel does not declare its own lanes: then the proof
    /// would be of something else than what runs.
    pub fn prove(plans: Vec<Plan>) -> Result<Self, Box<Report>> {
        let closed = examine(&plans, DEFAULT_CALLS, Boundary::Everything, Extent::First);
        // What holds with more accesses between calls holds with fewer.
        let (mut report, closed) = match closed.holds() {
            true => (closed, true),
            false => {
                let calls = DEFAULT_CALLS;
                (
                    examine(&plans, calls, Boundary::Operands, Extent::All),
                    false,
                )
            }
        };
        // Of plans with faults a kernel may have more lanes than there is memory.
        if report.holds() {
            report.violations.extend(undeclared(&plans));
        }
        match report.holds() {
            true => Ok(Self::known(plans, Proof { closed })),
            false => Err(Box::new(report)),
        }
    }

    /// Proves the plans, if their calls are closed. They declare what they do.
    pub(crate) fn prove_closed(plans: Vec<Plan>) -> Option<Self> {
        let (calls, boundary) = (DEFAULT_CALLS, Boundary::Everything);
        let holds = examine(&plans, calls, boundary, Extent::First).holds();
        holds.then(|| Self::known(plans, Proof { closed: true }))
    }

    /// The plans with a proof of theirs, or of plans of the same structure.
    pub(crate) fn known(mut plans: Vec<Plan>, proof: Proof) -> Self {
        plans.sort_by_key(|plan| plan.rank);
        Checked { plans, proof }
    }

    pub(crate) fn proof(&self) -> Proof {
        self.proof
    }

    /// Whether every call is *closed*: every access to a rank's memory by a peer, also to its staging, lies
    /// between the rank's entry into the call and its exit from it.
    ///
    /// Closed calls compose. Take any sequence of closed calls, of any schedules and of any M, which all
    /// ranks make in the same order. Let *x* be an access to a rank's memory in one call, *y* another to the
    /// same memory in a later call. *x* precedes the rank's exit from its call, that precedes the rank's
    /// entry into the later call, and that precedes *y*. So accesses of different calls never race, wherever
    /// each call has its buffers in the rank's staging memory: one arena serves all of them. Within a call
    /// order comes from signals of this call alone, because an order that goes through another call never
    /// comes back. And no call waits for a later one. So no further proof is needed of pairs of calls.
    ///
    /// Buffers that [alternate](crate::plan::Buffer::alternating) are the exception: they are memory of one
    /// schedule, of which every second call has the same. There *closed* says that no rank leaves a call
    /// before all ranks of its node have entered it. Then whatever touches the memory in one call precedes
    /// whatever touches it two calls later, whatever M the calls have.
    pub fn is_closed(&self) -> bool {
        self.proof.closed
    }

    /// The plan of a rank.
    ///
    /// # Panics
    /// If `rank` is not below [`Checked::world`].
    pub fn plan(&self, rank: usize) -> &Plan {
        &self.plans[rank]
    }

    /// The plans of all ranks, in their order.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// The number of ranks, at least 1.
    pub fn world(&self) -> usize {
        self.plans.len()
    }
}

/// Kernels whose lanes in the plan are not those of the kernel.
fn undeclared(plans: &[Plan]) -> impl Iterator<Item = Violation> {
    plans.iter().flat_map(|plan| {
        let ops = plan.ops.iter().enumerate();
        ops.filter_map(move |(op, kind)| match &kind.kind {
            OpKind::Kernel { kernel, lanes } => {
                let declared = *lanes == kernel.lanes(plan.rank, plan.world);
                (!declared).then(|| {
                    Violation::Fault(Fault {
                        rank: plan.rank,
                        op: Some(op),
                        kind: FaultKind::Undeclared,
                        what: format!("{} does not declare what it does", kernel.name()),
                    })
                })
            }
            _ => None,
        })
    })
}
