//! From operations to steps: regions become addresses, GEMMs get algorithms.

mod collectives;
mod gemms;
mod kernels;
mod runs;

use warpweave_symm_mem::{BackendKind, PadView};

use super::addresses::Place;
use super::error::Result;
use super::interface::Interface;
use super::step::{Action, Gemm, Step};
use super::{ExecuteBackend, Executor};
use crate::plan::{Op, OpKind, Plan, Region};

pub(super) use collectives::{ProcessGroups, node_of};
pub(super) use gemms::{Asked, Gemms, gemms};
pub(crate) use kernels::without_peers;
pub use kernels::{Binding, BoxedLaunch, Launch};

/// What a plan's operations are bound to.
pub(super) struct Binder<'a, B: ExecuteBackend> {
    pub executor: &'a Executor<B>,
    pub plan: &'a Plan,
    pub pad: Option<PadView>,
    pub groups: &'a ProcessGroups<B>,
    /// What each rank shares.
    pub interfaces: &'a [Interface],
    /// Whether to launch each kernel once on nothing, so that what the device or the build lacks is found
    /// now. The host lacks nothing.
    pub probe: bool,
}

impl<B: ExecuteBackend> Binder<'_, B> {
    /// The steps of the plan. Nothing here is collective.
    pub fn steps(&self, gemms: Gemms<B>) -> Result<Vec<Step<B>>> {
        let launches = |op: &Op| matches!(op.kind, OpKind::Kernel { .. } | OpKind::Reduce { .. });
        if self.probes() && self.plan.ops.iter().any(launches) {
            // All ranks meet in a barrier after this, before any of them launches: ranks that share a context
            // could not load kernels while one waits for another.
            self.executor.0.backend.preload()?;
        }
        let mut steps = Vec::with_capacity(self.plan.ops.len());
        let collectives = self.collectives()?;
        let ops = self.plan.ops.iter().zip(gemms).zip(collectives);
        for (index, ((op, gemm), collective)) in ops.enumerate() {
            let action = match &op.kind {
                OpKind::Copy { src, dst, .. } => Action::Copy(self.runs(src, dst)),
                OpKind::MulticastCopy { src, dst } => Action::Copy(self.multicast_runs(src, dst)),
                OpKind::Signal { slot, to } => Action::Signal {
                    slot: slot.0,
                    to: self.in_node(to),
                },
                OpKind::Wait { slot, from, lag } => Action::Wait {
                    slot: slot.0,
                    from: self.in_node(from),
                    lag: *lag,
                },
                OpKind::Record { event } => Action::Record(event.0),
                OpKind::WaitEvent { event } => Action::WaitEvent(event.0),
                OpKind::Reduce { srcs, dst } => self.reduction(srcs, dst)?,
                OpKind::Collective { .. } => match collective {
                    Some(collective) => collective,
                    None => continue,
                },
                OpKind::Gemm {
                    a,
                    b,
                    c,
                    bias,
                    scales,
                    batch,
                    ..
                } => match gemm {
                    Some((problem, provider, plan)) => Action::Gemm(Gemm {
                        problem,
                        provider,
                        plan,
                        a: self.place(a),
                        b: self.place(b),
                        c: self.place(c),
                        bias: bias.as_ref().map(|bias| self.place(bias)),
                        scales: scales
                            .as_ref()
                            .map(|scales| [&scales.a, &scales.b].map(|scales| self.place(scales))),
                    }),
                    // A GEMM of no terms, where a rank holds no column of A.
                    None => {
                        Action::Zero(batch.of_c(c).iter().flat_map(|c| self.spans(c)).collect())
                    }
                },
                OpKind::Kernel { kernel, .. } => self.kernel(kernel)?,
            };
            steps.push(Step {
                op: index,
                stream: op.stream.0,
                action,
            });
        }
        Ok(steps)
    }

    pub(super) fn probes(&self) -> bool {
        self.probe && B::KIND == BackendKind::Cuda
    }

    /// Ranks as the signal pad numbers them: within the node.
    fn in_node(&self, ranks: &[usize]) -> Vec<usize> {
        let first = self.plan.node_of(self.plan.rank).start;
        ranks.iter().map(|rank| rank - first).collect()
    }

    fn place(&self, region: &Region) -> Place {
        Place::of(self.plan, region)
    }
}
