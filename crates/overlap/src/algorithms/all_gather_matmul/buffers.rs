//! The buffers that the plans share, and GEMMs of parts of the rows.

use crate::PlanError;
use crate::kernels::{KernelScales, KernelShape, RowScales};
use crate::operation::Operation;
use crate::plan::{Batch, Collective, OpKind, Provider, Role, Scales, SlotId, StreamId, Transport};
use crate::plan::{BufferId, Placement, Plan, PlanBuilder, Problem, Region};
use crate::plan::{chunk, chunks, layout_of};
use std::ops::Range;
use warpweave_gemm::{Activation, Scaling};
use warpweave_symm_mem::DType;

/// Buffers of rows of A: their elements, and their scales where each row has one.
#[derive(Clone, Copy)]
pub struct RowBuffers {
    pub elements: BufferId,
    scales: Option<BufferId>,
}

impl RowBuffers {
    pub fn buffers(self) -> impl Iterator<Item = BufferId> {
        std::iter::once(self.elements).chain(self.scales)
    }
}

/// Rows of A with their scales, which go wherever they go.
#[derive(Clone)]
pub struct Rows {
    pub elements: Region,
    scales: Option<Region>,
}

/// A plan under construction, with the operands of an all-gather operation.
pub struct Operands {
    pub builder: PlanBuilder,
    pub a: RowBuffers,
    /// Of a linear layer, and of e4m3, stored n × k.
    pub b: BufferId,
    /// Of a linear layer.
    pub bias: Option<BufferId>,
    pub c: BufferId,
    /// The scale of all of A, where it has one, and those of B.
    scales: (Option<BufferId>, Option<BufferId>),
    pub rank: usize,
    world: usize,
    problem: Problem,
}

impl Operands {
    /// `a` is symmetric where peers read it and local where they do not.
    pub fn new(
        name: &str,
        ranks: (usize, usize),
        problem: &Problem,
        a_placement: Placement,
    ) -> Self {
        let a = (a_placement, problem.max_shard(ranks.1));
        Self::of(Operation::AllGatherMatmul, name, ranks, problem, a)
    }

    /// Those of this operation. `a` has as many rows as the rank that holds the most.
    pub fn of(
        operation: Operation,
        name: &str,
        (rank, world): (usize, usize),
        problem: &Problem,
        (a_placement, a_rows): (Placement, usize),
    ) -> Self {
        let Problem {
            m,
            n,
            k,
            dtype,
            scaling,
            ..
        } = *problem;
        let mut builder = PlanBuilder::new(name, rank, world);
        let is_layer = operation == Operation::ColumnParallelLinear;
        let is_narrow = scaling != Scaling::None;
        let stored = layout_of(problem.stores_b_transposed(is_layer)).stored(k, n);
        let elements = builder.buffer("a", a_placement, Role::Input, dtype, (a_rows, k));
        let mut local =
            |name, role, dtype, shape| builder.buffer(name, Placement::Local, role, dtype, shape);
        let b = local("b", Role::Weight, dtype, stored);
        let output = problem.output();
        let bias = is_layer.then(|| local("bias", Role::Weight, output, (1, n)));
        let c = local("c", Role::Output, output, (m, problem.c_columns()));
        let [of_a, of_b] = Scales::shapes(scaling, (m, n, k));
        let whole =
            (scaling == Scaling::Tensor).then(|| local("scales_a", Role::Input, DType::F32, of_a));
        let scales_b = is_narrow.then(|| local("scales_b", Role::Weight, DType::F32, of_b));
        let of_rows = matches!(scaling, Scaling::Row | Scaling::Block).then(|| {
            let shape = (a_rows, of_a.1);
            builder.buffer("scales_a", a_placement, Role::Input, DType::F32, shape)
        });
        Operands {
            builder,
            a: RowBuffers {
                elements,
                scales: of_rows,
            },
            b,
            bias,
            c,
            scales: (whole, scales_b),
            rank,
            world,
            problem: *problem,
        }
    }

    /// Adds the buffers that hold all rows of A.
    pub fn staging(&mut self, placement: Placement) -> RowBuffers {
        let rows = self.problem.m;
        self.row_buffers(["staging", "staged_scales"], placement, rows)
    }

    /// Adds buffers for so many rows of A, and for their scales where they have some.
    pub fn row_buffers(
        &mut self,
        [name, of_scales]: [&str; 2],
        placement: Placement,
        rows: usize,
    ) -> RowBuffers {
        let (Problem { k, dtype, .. }, scales) = (self.problem, self.scales_of_a_row());
        let mut buffer = |name, dtype, cols| {
            self.builder
                .buffer(name, placement, Role::Staging, dtype, (rows, cols))
        };
        let elements = buffer(name, dtype, k);
        let scales = self.a.scales.map(|_| buffer(of_scales, DType::F32, scales));
        RowBuffers { elements, scales }
    }

    /// The `index`-th of `count` chunks of this rank's shard, in its own buffer; empty if it has fewer.
    pub fn own_chunk(&self, count: usize, index: usize) -> Rows {
        let rows = 0..self.rows_of(self.rank).len();
        self.rows_in(self.rank, self.a, chunk(&rows, index, count))
    }

    /// These rows of buffers of `rank`.
    pub fn rows_in(&self, rank: usize, buffers: RowBuffers, rows: Range<usize>) -> Rows {
        let of = |buffer, cols| self.builder.on(rank, buffer, rows.clone(), 0..cols);
        Rows {
            elements: of(buffers.elements, self.problem.k),
            scales: (buffers.scales).map(|scales| of(scales, self.scales_of_a_row())),
        }
    }

    /// How many scales a row of A has, where it has some.
    fn scales_of_a_row(&self) -> usize {
        let Problem {
            m, n, k, scaling, ..
        } = self.problem;
        let [of_a, _] = Scales::shapes(scaling, (m, n, k));
        of_a.1
    }

    /// Copies rows by copy engine.
    pub fn copy(&mut self, stream: StreamId, src: &Rows, dst: &Rows) {
        for (src, dst) in src.regions().zip(dst.regions()) {
            self.builder.copy(stream, src.clone(), dst.clone());
        }
    }

    /// Copies rows to a peer, and signals it after that, whether or not there was something to copy.
    pub fn put(&mut self, stream: StreamId, src: &Rows, dst: &Rows, slot: SlotId) {
        self.copy(stream, src, dst);
        self.builder.signal(stream, slot, [dst.elements.rank]);
    }

    /// Gathers rows of all ranks by a collective.
    pub fn gather(&mut self, stream: StreamId, src: &Rows, dst: &Rows, transport: Transport) {
        for (src, dst) in src.regions().zip(dst.regions()) {
            let (src, dst) = (src.clone(), dst.clone());
            self.builder
                .collective(stream, Collective::AllGather, src, dst, transport);
        }
    }

    /// The rows that `rank` holds, in its own buffer.
    pub fn shard_on(&self, rank: usize) -> Rows {
        self.rows_in(rank, self.a, 0..self.rows_of(rank).len())
    }

    /// This rank's shard, in its own buffer.
    pub fn own_shard(&self) -> Rows {
        self.shard_on(self.rank)
    }

    /// Where this rank's shard lies in the staging of `rank`.
    pub fn staged_on(&self, rank: usize, staging: RowBuffers) -> Rows {
        self.rows_in(rank, staging, self.rows_of(self.rank))
    }

    /// The sizes of an all-gather GEMM.
    pub fn shape(&self) -> KernelShape {
        let Problem { m, n, k, dtype, .. } = self.problem;
        KernelShape { m, n, k, dtype }
    }

    /// The sizes of a kernel that only gathers.
    pub fn gather_shape(&self) -> KernelShape {
        KernelShape {
            n: 0,
            ..self.shape()
        }
    }

    /// Multiplies the staged rows.
    pub fn gemm(&mut self, provider: Provider, staging: RowBuffers) {
        let rows = 0..self.problem.m;
        let src = self.rows_in(self.rank, staging, rows.clone());
        self.gemms(provider, StreamId::MAIN, src, (rows, Batch::ONE));
    }

    /// Gathers all rows by one collective, then multiplies them by cuBLASLt, as in [`Operands::gemm_of`].
    pub fn gather_then_gemm(&mut self, transport: Transport) {
        let (main, rows) = (StreamId::MAIN, 0..self.problem.m);
        let staging = self.staging(transport.placement());
        let all = self.rows_in(self.rank, staging, rows.clone());
        self.gather(main, &self.own_shard(), &all, transport);
        self.gemm_staged(main, staging, rows);
    }

    /// Whether B is stored n × k.
    pub fn b_transposed(&self) -> bool {
        self.problem.stores_b_transposed(self.bias.is_some())
    }

    /// The rows of A that `rank` holds.
    pub fn rows_of(&self, rank: usize) -> Range<usize> {
        self.problem.shard(rank, self.world)
    }

    /// Pushes this rank's shard to rank r + 1, then r + 2 and so on, in `count` chunks with a signal after
    /// each, once the peer has given its credit in `free`. `ready` gives the slot for the step, from 1, and
    /// the number of the chunk.
    pub fn push(
        &mut self,
        stream: StreamId,
        staging: RowBuffers,
        count: usize,
        free: SlotId,
        ready: impl Fn(usize, usize) -> SlotId,
    ) {
        let own = self.rows_of(self.rank);
        for (to, step) in self.builder.peers().into_iter().zip(1..) {
            self.builder.wait_credit(stream, free, [to]);
            for (chunk, rows) in chunks(own.clone(), count).enumerate() {
                let (start, end) = (rows.start - own.start, rows.end - own.start);
                let src = self.rows_in(self.rank, self.a, start..end);
                let dst = self.rows_in(to, staging, rows);
                self.put(stream, &src, &dst, ready(step, chunk));
            }
        }
    }

    /// Pushes up to `count` rows of this rank's shard, from its first, to rank r + 1, then r + 2 and so on,
    /// in one piece each with a signal after it, without their scales. Nothing from a rank without rows.
    pub fn push_first(
        &mut self,
        stream: StreamId,
        staging: RowBuffers,
        count: usize,
        slot: SlotId,
    ) {
        let Range { start, end } = self.rows_of(self.rank);
        let rows = start..end.min(start + count);
        if rows.is_empty() {
            return;
        }
        for to in self.builder.peers() {
            let src = self.rows_in(self.rank, self.a, 0..rows.len());
            let dst = self.rows_in(to, staging, rows.clone());
            self.put(stream, &src.unscaled(), &dst.unscaled(), slot);
        }
    }

    /// The scales of an all-gather GEMM.
    pub fn kernel_scales(&self, staging: RowBuffers) -> Option<RowScales> {
        let (of_all, of_b) = self.scales;
        let own = KernelScales {
            scaling: self.problem.scaling,
            a: self.a.scales.or(of_all)?,
            b: of_b?,
        };
        Some(RowScales {
            own,
            staging: staging.scales,
        })
    }

    /// Multiplies this rank's shard where it lies.
    pub fn gemm_own(&mut self, stream: StreamId) {
        let (src, rows) = (self.own_shard(), self.rows_of(self.rank));
        self.gemm_of(stream, src, rows);
    }

    /// The plan of a rank without peers, whose shard is all of A.
    pub fn finish_alone(mut self) -> Result<Plan, PlanError> {
        self.gemm_own(StreamId::MAIN);
        self.builder.finish()
    }

    /// Multiplies these rows, which are in this rank's staging.
    pub fn gemm_staged(&mut self, stream: StreamId, staging: RowBuffers, rows: Range<usize>) {
        let src = self.rows_in(self.rank, staging, rows.clone());
        self.gemm_of(stream, src, rows);
    }

    /// Rows of C from rows of A by cuBLASLt, with scales by block or an activation by SM90; nothing where
    /// there are none.
    pub fn gemm_of(&mut self, stream: StreamId, src: Rows, rows: Range<usize>) {
        self.gemms(Provider::CublasLt, stream, src, (rows, Batch::ONE));
    }

    /// The same of a batch, of which `src` and `rows` are those of the first GEMM.
    pub fn gemms(
        &mut self,
        provider: Provider,
        stream: StreamId,
        src: Rows,
        (rows, batch): (Range<usize>, Batch),
    ) {
        if rows.is_empty() {
            return;
        }
        let Problem {
            scaling,
            activation,
            ..
        } = self.problem;
        let provider = match activation {
            Activation::None => Scales::provider_of_rows(scaling, provider),
            Activation::SwiGlu => Provider::Sm90,
        };
        let whole = |buffer| self.builder.whole(buffer);
        let (of_all, of_b) = (self.scales.0.map(whole), self.scales.1.map(whole));
        let scales = src.scales.or(of_all).zip(of_b);
        let gemm = OpKind::Gemm {
            a: src.elements,
            b: whole(self.b),
            c: self.builder.own(self.c, rows, 0..self.problem.c_columns()),
            bias: self.bias.map(whole),
            b_transposed: self.b_transposed(),
            scales: scales.map(|(a, b)| Scales { scaling, a, b }),
            activation,
            batch,
            provider,
        };
        self.builder.push(stream, gemm);
    }
}

impl Rows {
    /// Without their scales.
    fn unscaled(self) -> Self {
        Rows {
            scales: None,
            ..self
        }
    }

    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        std::iter::once(&self.elements).chain(&self.scales)
    }
}
