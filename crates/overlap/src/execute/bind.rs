//! From operations to steps: regions become addresses, products get algorithms.

use std::sync::Arc;

use warpweave_gemm::waiting::Arrival;
use warpweave_gemm::{GemmBackend, GemmProblem, Layout, Provider, WaitingMatmul};
use warpweave_kernels::{GatherMatmul, GatherMode, NaiveRemoteRead};
use warpweave_symm_mem::{BackendKind, DevicePtr, PadView, SignalPad};

use super::buffers::Buffers;
use super::collective::AllGatherShape;
use super::error::{ExecuteError, Result};
use super::step::{Action, Product, Run, Step};
use super::{ExecuteBackend, Executor};
use crate::plan::{GemmProvider, Kernel, Op, OpKind, Plan, Region, shard};

/// What a plan's operations are bound to.
pub(super) struct Binder<'a, B: ExecuteBackend> {
    pub executor: &'a Executor<B>,
    pub plan: &'a Plan,
    pub buffers: &'a Buffers<B>,
    pub pad: Option<&'a SignalPad<B>>,
}

/// For each operation of a plan its product, if it is one and not empty.
pub(super) type Products<B> = Vec<Option<(GemmProblem, Provider, <B as GemmBackend>::GemmPlan)>>;

/// Plans the product of an operation, in the order of the operations; `None` for other operations and empty products.
/// Nothing here is collective.
pub(super) fn products<B: ExecuteBackend>(
    executor: &Executor<B>,
    plan: &Plan,
) -> Result<Products<B>> {
    let product = |kind: &OpKind| {
        let OpKind::Gemm {
            a, b, c, provider, ..
        } = kind
        else {
            return Ok(None);
        };
        if c.is_empty() || a.cols.is_empty() {
            return Ok(None);
        }
        let buffer = |region: &Region| &plan.buffers[region.buffer.0];
        let problem = GemmProblem {
            m: c.rows.len(),
            n: c.cols.len(),
            k: a.cols.len(),
            dtype: buffer(a).dtype,
            out: buffer(c).dtype,
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            lda: buffer(a).cols,
            ldb: buffer(b).cols,
            ldc: buffer(c).cols,
        };
        let provider = match (B::KIND, provider) {
            (BackendKind::Host, _) => Provider::Host,
            (BackendKind::Cuda, GemmProvider::CublasLt) => Provider::CublasLt,
            (BackendKind::Cuda, GemmProvider::Cutlass) => Provider::Cutlass,
        };
        let planned = executor.gemm.plan(&problem, provider)?;
        Ok(Some((problem, provider, planned)))
    };
    plan.ops.iter().map(|op| product(&op.kind)).collect()
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
        let launches = |op: &Op| matches!(op.kind, OpKind::Kernel { .. });
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
                OpKind::Sum { .. } => continue,
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

    /// A copy of a box: one run where the rows lie without gaps on both sides, else one a row.
    fn runs(&self, src: &Region, dst: &Region) -> Vec<Run> {
        let from = self.buffers.copy_of(src.buffer, src.rank);
        let to = self.buffers.copy_of(dst.buffer, dst.rank);
        self.runs_between((src, from), (dst, to))
    }

    fn multicast_runs(&self, src: &Region, dst: &crate::plan::MulticastRegion) -> Vec<Run> {
        let from = self.buffers.copy_of(src.buffer, src.rank);
        let to = self.buffers.multicast(dst.buffer);
        if to == DevicePtr::NULL {
            // The host backend emulates the multicast address: it stores to every copy.
            return (0..self.plan.world)
                .flat_map(|rank| self.runs(src, &dst.on(rank)))
                .collect();
        }
        self.runs_between((src, from), (&dst.on(self.plan.rank), to))
    }

    fn runs_between(
        &self,
        (src, from): (&Region, DevicePtr),
        (dst, to): (&Region, DevicePtr),
    ) -> Vec<Run> {
        if src.is_empty() {
            return Vec::new();
        }
        let whole = |r: &Region| r.cols.len() == self.plan.buffers[r.buffer.0].cols;
        let row = src.cols.len() * self.plan.buffers[src.buffer.0].dtype.size();
        let (runs, bytes) = match src.rows.len() {
            rows if whole(src) && whole(dst) => (1, rows * row),
            rows => (rows, row),
        };
        (0..runs)
            .map(|i| Run {
                dst: to.add(self.offset(dst, i)),
                src: from.add(self.offset(src, i)),
                bytes,
            })
            .collect()
    }

    fn pad_view(&self) -> Result<PadView> {
        self.pad
            .map(SignalPad::view)
            .ok_or_else(|| ExecuteError::InvalidPlan {
                plan: self.plan.name.clone(),
                rank: self.plan.rank,
                place: "slots".into(),
                why: "a kernel that signals needs a signal pad".into(),
            })
    }

    /// Launches a kernel on a problem of no rows with no peers, which touches nothing: what the device or the build lacks
    /// is found before any rank waits for this one.
    fn probe(&self, action: &Action<B>) -> Result<()> {
        let backend = &self.executor.backend;
        let stream = backend.setup_stream()?;
        let alone = |pad: PadView| PadView {
            rank: 0,
            world: 1,
            ..pad
        };
        match action {
            Action::NaiveRemoteRead(launch) => {
                let empty = NaiveRemoteRead {
                    m: 0,
                    pad: alone(launch.pad),
                    ..*launch
                };
                // SAFETY: the launch reads and writes no row and signals no peer.
                unsafe { backend.naive_remote_read(&stream, &empty)? };
            }
            Action::GatherMatmul(launch) => {
                let empty = GatherMatmul {
                    m: 0,
                    pad: alone(launch.pad),
                    ..*launch
                };
                // SAFETY: as above.
                unsafe { backend.gather_matmul(&stream, &empty)? };
            }
            _ => {}
        }
        Ok(backend.synchronize(&stream)?)
    }

    fn kernel(&self, kernel: &Kernel) -> Result<Action<B>> {
        let pad = self.pad_view()?;
        let shape = kernel.shape();
        let own = |id| self.buffers.copy_of(id, self.plan.rank);
        let gather = |mode, a, staging, (b, c), ready| GatherMatmul {
            mode,
            a,
            staging,
            b,
            c,
            m: shape.m,
            n: shape.n,
            k: shape.k,
            dtype: shape.dtype,
            pad,
            ready,
            max_blocks: None,
        };
        let nothing = (DevicePtr::NULL, DevicePtr::NULL);
        let thread_load = |a, done: crate::plan::SlotId| GatherMode::ThreadLoad {
            a_peers: self.buffers.table(a),
            done: done.0,
        };
        let multimem = |staging, free: crate::plan::SlotId, signal_free| GatherMode::Multimem {
            address: self.buffers.multicast(staging),
            staging_peers: self.buffers.table(staging),
            free: free.0,
            signal_free,
        };
        let launch = match *kernel {
            Kernel::NaiveRemoteRead {
                a,
                b,
                c,
                ready,
                done,
                ..
            } => {
                let launch = NaiveRemoteRead {
                    a_peers: self.buffers.table(a),
                    b: own(b),
                    c: own(c),
                    m: shape.m,
                    n: shape.n,
                    k: shape.k,
                    dtype: shape.dtype,
                    pad,
                    ready: ready.0,
                    done: done.0,
                    max_blocks: None,
                };
                return Ok(Action::NaiveRemoteRead(launch));
            }
            Kernel::ThreadloadGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                done,
                ..
            } => gather(
                thread_load(a, done),
                own(a),
                own(staging),
                (own(b), own(c)),
                ready.0,
            ),
            Kernel::ThreadloadGather {
                a,
                staging,
                ready,
                done,
                ..
            } => gather(thread_load(a, done), own(a), own(staging), nothing, ready.0),
            Kernel::MultimemGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                free,
                ..
            } => {
                let mode = multimem(staging, free, true);
                gather(mode, own(a), own(staging), (own(b), own(c)), ready.0)
            }
            Kernel::MultimemGather {
                a,
                staging,
                ready,
                free,
                ..
            } => gather(
                multimem(staging, free, false),
                own(a),
                own(staging),
                nothing,
                ready.0,
            ),
            Kernel::WaitingMatmul {
                a,
                b,
                c,
                staging,
                ready,
                ..
            } => {
                let (rank, world) = (self.plan.rank, self.plan.world);
                let arrivals = kernel.arrivals(rank, world).into_iter();
                let product = WaitingMatmul {
                    problem: GemmProblem::new(shape.m, shape.n, shape.k, shape.dtype),
                    own: shard(shape.m, rank, world),
                    arrivals: arrivals
                        .map(|(from, rows)| Arrival { rows, from })
                        .collect(),
                    a: own(a),
                    staging: own(staging),
                    b: own(b),
                    c: own(c),
                    pad,
                    ready: ready.0,
                };
                let planned = self.executor.backend.waiting_plan(&product)?;
                return Ok(Action::WaitingMatmul(planned));
            }
        };
        Ok(Action::GatherMatmul(launch))
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
