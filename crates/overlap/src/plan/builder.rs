//! Building a plan operation by operation.

use super::{
    Activation, AddRmsNorm, Batch, Buffer, BufferId, CALLER_STEPS, Collective, EventId,
    MulticastRegion, Op, OpKind, Placement, Plan, Provider, Region, Role, Slot, SlotId, StreamId,
    Transport,
};
use crate::check;
use crate::error::PlanError;
use crate::kernels::AnyKernel;
use std::ops::Range;
use warpweave_symm_mem::{DType, Priority};

/// Builds the [`Plan`] of one rank.
///
/// Operations that would do nothing are left out: signals and waits with no rank to talk to, copies of empty
/// boxes. So an algorithm need not treat a world of one, or a rank with an empty shard, as a special case.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    plan: Plan,
    /// Of a call. Operations beyond [`Plan::MOST_STEPS`] are counted and not kept.
    steps: usize,
}

impl PlanBuilder {
    /// An empty plan with one stream.
    pub fn new(name: impl Into<String>, rank: usize, world: usize) -> Self {
        PlanBuilder {
            plan: Plan {
                name: name.into(),
                rank,
                world,
                node_size: world,
                buffers: Vec::new(),
                streams: vec![Priority::Normal],
                events: 0,
                slots: Vec::new(),
                ops: Vec::new(),
            },
            steps: CALLER_STEPS,
        }
    }

    /// Every other rank, in the order that spreads the load over the links: the next rank first.
    pub fn peers(&self) -> Vec<usize> {
        let Plan { rank, world, .. } = self.plan;
        (1..world)
            .map(|step| (rank % world + step) % world)
            .collect()
    }

    /// Makes nodes of `size` consecutive ranks. By default all ranks share one node.
    pub fn nodes_of(&mut self, size: usize) -> &mut Self {
        self.plan.node_size = size;
        self
    }

    /// Adds a buffer of `rows` × `cols` elements.
    pub fn buffer(
        &mut self,
        name: impl Into<String>,
        placement: Placement,
        role: Role,
        dtype: DType,
        (rows, cols): (usize, usize),
    ) -> BufferId {
        self.plan.buffers.push(Buffer {
            name: name.into(),
            placement,
            role,
            dtype,
            rows,
            cols,
            alternating: false,
        });
        BufferId(self.plan.buffers.len() - 1)
    }

    /// Makes two of a buffer, between which calls alternate.
    pub fn alternate(&mut self, buffer: BufferId) -> &mut Self {
        if let Some(buffer) = self.plan.buffers.get_mut(buffer.0) {
            buffer.alternating = true;
        }
        self
    }

    /// Adds a row to the signal pad. All ranks must add the same ones in the same order.
    pub fn slot(&mut self, name: impl Into<String>) -> SlotId {
        self.plan.slots.push(Slot { name: name.into() });
        SlotId(self.plan.slots.len() - 1)
    }

    /// Adds `count` rows to the signal pad, at least one, and gives the first.
    pub(crate) fn slots(&mut self, count: usize, name: impl Fn(usize) -> String) -> SlotId {
        let first = self.slot(name(0));
        for index in 1..count {
            self.slot(name(index));
        }
        first
    }

    /// Adds an event.
    pub fn event(&mut self) -> EventId {
        self.plan.events += 1;
        EventId(self.plan.events - 1)
    }

    /// Adds an urgent stream, for communication, that begins after what is on the main stream so far.
    pub fn fork(&mut self) -> StreamId {
        self.fork_with(Priority::High)
    }

    /// Adds a stream that begins after what is on the main stream so far.
    pub fn fork_with(&mut self, priority: Priority) -> StreamId {
        self.fork_from(StreamId::MAIN, priority)
    }

    /// Adds a stream that begins after what is on `earlier` so far.
    pub fn fork_from(&mut self, earlier: StreamId, priority: Priority) -> StreamId {
        let stream = StreamId(self.plan.streams.len());
        self.plan.streams.push(priority);
        self.order(earlier, stream);
        stream
    }

    /// Adds `count` streams that begin after what is on the main stream so far.
    pub fn pool(&mut self, count: usize, priority: Priority) -> Vec<StreamId> {
        (0..count).map(|_| self.fork_with(priority)).collect()
    }

    /// As [`PlanBuilder::pool`], where the main stream has nothing to do meanwhile: a pool of one is the main
    /// stream itself, and needs no events.
    pub fn whole_pool(&mut self, count: usize, priority: Priority) -> Vec<StreamId> {
        match count {
            1 => vec![StreamId::MAIN],
            _ => self.pool(count, priority),
        }
    }

    /// Lets the main stream go on only after what is on `stream` so far.
    pub fn join(&mut self, stream: StreamId) -> &mut Self {
        self.order(stream, StreamId::MAIN)
    }

    /// Lets `later` go on only after what is on `earlier` so far, by an event of its own. A stream is in
    /// order with itself.
    pub fn order(&mut self, earlier: StreamId, later: StreamId) -> &mut Self {
        if earlier == later {
            return self;
        }
        let event = self.event();
        self.record(earlier, event).wait_event(later, event)
    }

    /// A box of this rank's copy of a buffer.
    pub fn own(&self, buffer: BufferId, rows: Range<usize>, cols: Range<usize>) -> Region {
        self.on(self.plan.rank, buffer, rows, cols)
    }

    /// A box of the copy of `rank`.
    pub fn on(
        &self,
        rank: usize,
        buffer: BufferId,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Region {
        Region {
            rank,
            buffer,
            rows,
            cols,
        }
    }

    /// All of this rank's copy of a buffer; empty for an id that this builder did not give.
    pub fn whole(&self, buffer: BufferId) -> Region {
        let (rows, cols) = self
            .plan
            .buffer(buffer)
            .map_or((0, 0), |b| (b.rows, b.cols));
        self.own(buffer, 0..rows, 0..cols)
    }

    /// Copies by copy engine.
    pub fn copy(&mut self, stream: StreamId, src: Region, dst: Region) -> &mut Self {
        if src.is_empty() && dst.is_empty() {
            return self;
        }
        self.push(stream, OpKind::Copy { src, dst })
    }

    /// Copies to a peer by copy engine, and signals it after that, whether or not there was something to
    /// copy.
    pub fn put(&mut self, stream: StreamId, src: Region, dst: Region, slot: SlotId) -> &mut Self {
        let to = dst.rank;
        self.copy(stream, src, dst).signal(stream, slot, [to])
    }

    /// Copies one of this rank's boxes to every rank of its node by the multicast address.
    pub fn multicast_copy(
        &mut self,
        stream: StreamId,
        src: Region,
        dst: MulticastRegion,
    ) -> &mut Self {
        if src.is_empty() && dst.on(0).is_empty() {
            return self;
        }
        self.push(stream, OpKind::MulticastCopy { src, dst })
    }

    /// Signals each rank of `to`.
    pub fn signal(
        &mut self,
        stream: StreamId,
        slot: SlotId,
        to: impl IntoIterator<Item = usize>,
    ) -> &mut Self {
        let to: Vec<usize> = to.into_iter().collect();
        if to.is_empty() {
            return self;
        }
        self.push(stream, OpKind::Signal { slot, to })
    }

    /// Waits for this call's signal of each rank of `from`.
    pub fn wait(
        &mut self,
        stream: StreamId,
        slot: SlotId,
        from: impl IntoIterator<Item = usize>,
    ) -> &mut Self {
        self.wait_lag(stream, slot, from, 0)
    }

    /// Waits for the previous call's signal of each rank of `from`; the first call has it for nothing.
    pub fn wait_credit(
        &mut self,
        stream: StreamId,
        slot: SlotId,
        from: impl IntoIterator<Item = usize>,
    ) -> &mut Self {
        self.wait_lag(stream, slot, from, 1)
    }

    /// Waits for each rank of `from`, with up to `lag` signals outstanding.
    pub fn wait_lag(
        &mut self,
        stream: StreamId,
        slot: SlotId,
        from: impl IntoIterator<Item = usize>,
        lag: u32,
    ) -> &mut Self {
        let from: Vec<usize> = from.into_iter().collect();
        if from.is_empty() {
            return self;
        }
        self.push(stream, OpKind::Wait { slot, from, lag })
    }

    /// Records an event.
    pub fn record(&mut self, stream: StreamId, event: EventId) -> &mut Self {
        self.push(stream, OpKind::Record { event })
    }

    /// Waits for an event.
    pub fn wait_event(&mut self, stream: StreamId, event: EventId) -> &mut Self {
        self.push(stream, OpKind::WaitEvent { event })
    }

    /// A collective of all ranks.
    pub fn collective(
        &mut self,
        stream: StreamId,
        collective: Collective,
        src: Region,
        dst: Region,
        transport: Transport,
    ) -> &mut Self {
        let ranks = (0..self.plan.world).collect();
        self.collective_of(stream, collective, (src, dst), ranks, transport)
    }

    /// A collective of `ranks`, in the order of their shards.
    pub fn collective_of(
        &mut self,
        stream: StreamId,
        collective: Collective,
        (src, dst): (Region, Region),
        ranks: Vec<usize>,
        transport: Transport,
    ) -> &mut Self {
        self.push(
            stream,
            OpKind::Collective {
                collective,
                src,
                dst,
                ranks,
                transport,
                then: None,
            },
        )
    }

    /// An all-reduce of all ranks, of which `dst` gets the rows that are added to a residual and normalized.
    /// Unless it is `dst`, `src` may hold anything then.
    pub fn all_reduce_add_rms_norm(
        &mut self,
        stream: StreamId,
        (src, dst): (Region, Region),
        norm: AddRmsNorm,
        transport: Transport,
    ) -> &mut Self {
        self.push(
            stream,
            OpKind::Collective {
                collective: Collective::AllReduce,
                src,
                dst,
                ranks: (0..self.plan.world).collect(),
                transport,
                then: Some(norm),
            },
        )
    }

    /// Computes c = a · b.
    pub fn gemm(
        &mut self,
        stream: StreamId,
        provider: Provider,
        a: Region,
        b: Region,
        c: Region,
    ) -> &mut Self {
        self.push(
            stream,
            OpKind::Gemm {
                a,
                b,
                c,
                bias: None,
                scales: None,
                activation: Activation::None,
                b_transposed: false,
                batch: Batch::ONE,
                provider,
            },
        )
    }

    /// Computes c = a · wᵀ, with `bias` added to every row if there is one: a linear layer, whose weight is
    /// stored n × k.
    pub fn linear(
        &mut self,
        stream: StreamId,
        (a, weight, bias): (Region, Region, Option<Region>),
        c: Region,
        batch: Batch,
    ) -> &mut Self {
        self.push(
            stream,
            OpKind::Gemm {
                a,
                b: weight,
                c,
                bias,
                scales: None,
                activation: Activation::None,
                b_transposed: true,
                batch,
                provider: Provider::CublasLt,
            },
        )
    }

    /// Reduces boxes of one shape: adds them in the order given.
    pub fn reduce(&mut self, stream: StreamId, srcs: Vec<Region>, dst: Region) -> &mut Self {
        if dst.is_empty() && srcs.iter().all(Region::is_empty) {
            return self;
        }
        self.push(stream, OpKind::Reduce { srcs, dst })
    }

    /// Launches a kernel, declaring the lanes that it has on this rank.
    pub fn kernel(&mut self, stream: StreamId, kernel: impl Into<AnyKernel>) -> &mut Self {
        let kernel = kernel.into();
        let Plan { rank, world, .. } = self.plan;
        let effects = kernel.about_effects(world);
        if effects > Plan::MOST_STEPS {
            self.steps = self.steps.saturating_add(effects);
            return self;
        }
        let lanes = kernel.lanes(rank, world);
        self.push(stream, OpKind::Kernel { kernel, lanes })
    }

    /// Adds an operation as it is.
    pub fn push(&mut self, stream: StreamId, kind: OpKind) -> &mut Self {
        self.steps = self.steps.saturating_add(kind.steps());
        if self.steps <= Plan::MOST_STEPS {
            self.plan.ops.push(Op { stream, kind });
        }
        self
    }

    /// What has been built so far, sound or not; of more than [`Plan::MOST_STEPS`] steps the first.
    pub fn draft(&self) -> &Plan {
        &self.plan
    }

    /// The finished plan.
    ///
    /// # Errors
    /// The plan names a rank, buffer, stream, event or slot that does not exist, a box that lies outside its
    /// buffer, a peer's local memory, or shapes that do not fit together; it has more than
    /// [`Plan::MOST_STEPS`] steps. What needs the plans of the other ranks too is left to
    /// [`check`](crate::check::check()).
    pub fn finish(self) -> Result<Plan, PlanError> {
        if self.steps > Plan::MOST_STEPS {
            return Err(PlanError::TooManySteps {
                plan: self.plan.name,
                steps: self.steps,
                most: Plan::MOST_STEPS,
            });
        }
        match check::faults_of(&self.plan).into_iter().next() {
            None => Ok(self.plan),
            Some(fault) => Err(PlanError::Malformed {
                plan: self.plan.name,
                rank: self.plan.rank,
                what: fault.to_string(),
            }),
        }
    }
}
