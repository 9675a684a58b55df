//! From operations to steps: regions become addresses, products get algorithms.

mod kernels;
mod products;
mod runs;

use std::sync::Arc;

use warpweave_symm_mem::{DevicePtr, SignalPad};

use super::buffers::Buffers;
use super::collective::AllGatherShape;
use super::error::Result;
use super::step::{Action, Product, Step};
use super::{ExecuteBackend, Executor};
use crate::plan::{Op, OpKind, Plan, Region, shard};

pub(super) use products::{Products, products};

/// What a plan's operations are bound to.
pub(super) struct Binder<'a, B: ExecuteBackend> {
    pub executor: &'a Executor<B>,
    pub plan: &'a Plan,
    pub buffers: &'a Buffers<B>,
    pub pad: Option<&'a SignalPad<B>>,
}

impl<B: ExecuteBackend> Binder<'_, B> {
    /// The all-gathers of the plan, in order. Collective.
    pub fn all_gathers(&self) -> Result<Vec<B::AllGather>> {
        let mut gathers = Vec::new();
        for op in &self.plan.ops {
            let OpKind::Collective { dst, .. } = &op.kind else {
                continue;
            };
            let shape = AllGatherShape {
                name: format!("{}.all-gather-{}", self.plan.name, gathers.len()),
                rows: (0..self.plan.world)
                    .map(|rank| shard(dst.rows.len(), rank, self.plan.world).len())
                    .collect(),
                cols: dst.cols.len(),
                dtype: self.plan.buffers[dst.buffer.0].dtype,
            };
            let executor = self.executor;
            let group = executor.group()?;
            let exchange = &executor.exchange;
            gathers.push(
                executor
                    .backend
                    .prepare_all_gather(&group, exchange, &shape)?,
            );
        }
        Ok(gathers)
    }

    /// The steps of the plan. Nothing here is collective.
    pub fn steps(&self, products: Products<B>, gathers: Vec<B::AllGather>) -> Result<Vec<Step<B>>> {
        let launches = |op: &Op| matches!(op.kind, OpKind::Kernel { .. } | OpKind::Sum { .. });
        if self.plan.ops.iter().any(launches) {
            // All ranks come together behind this, before any of them launches: ranks that share a context could not
            // load kernels while one waits for another.
            self.executor.backend.preload()?;
        }
        let mut gathers = gathers.into_iter();
        let mut steps = Vec::with_capacity(self.plan.ops.len());
        for (op, product) in self.plan.ops.iter().zip(products) {
            let action = match &op.kind {
                OpKind::Copy { src, dst, .. } => Action::Copy(self.runs(src, dst)),
                OpKind::MulticastCopy { src, dst } => Action::Copy(self.multicast_runs(src, dst)),
                OpKind::Signal { slot, to } => Action::Signal {
                    slot: slot.0,
                    to: to.clone(),
                },
                OpKind::Wait { slot, from, lag } => Action::Wait {
                    slot: slot.0,
                    from: from.clone(),
                    lag: *lag,
                },
                OpKind::Record { event } => Action::Record(event.0),
                OpKind::WaitEvent { event } => Action::WaitEvent(event.0),
                OpKind::Sum { srcs, dst } => {
                    let action = self.sum(srcs, dst)?;
                    self.probe(&action)?;
                    action
                }
                OpKind::Collective { src, dst, .. } => {
                    let Some(gather) = gathers.next() else {
                        continue;
                    };
                    let (src, dst) = (self.address(src), self.address(dst));
                    Action::AllGather { gather, src, dst }
                }
                OpKind::Gemm { a, b, c, .. } => {
                    let Some((problem, provider, plan)) = product else {
                        continue;
                    };
                    let operands = (self.address(a), self.address(b), self.address(c));
                    Action::Gemm(Product {
                        problem,
                        provider,
                        plan,
                        operands,
                    })
                }
                OpKind::Kernel { kernel, .. } => {
                    let action = self.kernel(kernel)?;
                    self.probe(&action)?;
                    action
                }
            };
            steps.push(Step {
                stream: op.stream.0,
                action,
            });
        }
        Ok(steps)
    }

    /// Bytes from the start of a copy of a buffer to an element.
    fn offset(&self, region: &Region, row: usize) -> usize {
        let buffer = &self.plan.buffers[region.buffer.0];
        ((region.rows.start + row) * buffer.cols + region.cols.start) * buffer.dtype.size()
    }

    fn address(&self, region: &Region) -> DevicePtr {
        self.buffers
            .copy_of(region.buffer, region.rank)
            .add(self.offset(region, 0))
    }
}

impl<B: ExecuteBackend> Executor<B> {
    /// The collectives' group, made at the first plan that needs it. Collective.
    fn group(&self) -> Result<Arc<B::Group>> {
        if let Some(group) = self.group.get() {
            return Ok(group.clone());
        }
        let group = self.backend.group(&self.exchange);
        let group = super::agreement::together(self.exchange.as_ref(), "collectives", group)?;
        Ok(self.group.get_or_init(|| Arc::new(group)).clone())
    }
}
