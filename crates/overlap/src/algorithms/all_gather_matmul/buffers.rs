//! The buffers that the plans share, and GEMMs of parts of the rows.

use crate::kernels::KernelShape;
use crate::operation::Operation;
use crate::plan::{Batch, Provider, SlotId, chunk, chunks, layout_of, shard};
use crate::plan::{BufferId, Placement, PlanBuilder, Problem, Region, Role, StreamId};
use std::ops::Range;

/// A plan under construction, with its operands.
pub(super) struct Operands {
    pub(super) builder: PlanBuilder,
    pub(super) a: BufferId,
    pub(super) b: BufferId,
    /// Of a linear layer, whose `b` is stored n × k.
    pub(super) bias: Option<BufferId>,
    pub(super) c: BufferId,
    pub(super) rank: usize,
    world: usize,
    problem: Problem,
}

impl Operands {
    /// `a` is symmetric where peers read it and local where they do not.
    pub(super) fn new(
        name: &str,
        ranks: (usize, usize),
        problem: &Problem,
        a_placement: Placement,
    ) -> Self {
        Self::of(
            Operation::AllGatherMatmul,
            name,
            ranks,
            problem,
            a_placement,
        )
    }

    /// Those of an operation that gathers A.
    pub(super) fn of(
        operation: Operation,
        name: &str,
        (rank, world): (usize, usize),
        problem: &Problem,
        a_placement: Placement,
    ) -> Self {
        let Problem { m, n, k, dtype, .. } = *problem;
        let mut builder = PlanBuilder::new(name, rank, world);
        let shard_rows = problem.max_shard(world);
        let is_layer = operation == Operation::ColumnParallelLinear;
        let stored = layout_of(is_layer).stored(k, n);
        let a = builder.buffer("a", a_placement, Role::Input, dtype, (shard_rows, k));
        let mut local =
            |name, role, shape| builder.buffer(name, Placement::Local, role, dtype, shape);
        let b = local("b", Role::Weight, stored);
        let bias = is_layer.then(|| local("bias", Role::Weight, (1, n)));
        let c = local("c", Role::Output, (m, n));
        Operands {
            builder,
            a,
            b,
            bias,
            c,
            rank,
            world,
            problem: *problem,
        }
    }

    /// Adds the buffer that holds all rows of A.
    pub(super) fn staging(&mut self, placement: Placement) -> BufferId {
        let Problem { m, k, dtype, .. } = self.problem;
        self.builder
            .buffer("staging", placement, Role::Staging, dtype, (m, k))
    }

    /// This rank's shard, in its own buffer.
    pub(super) fn own_shard(&self) -> Region {
        let rows = shard(self.problem.m, self.rank, self.world).len();
        self.builder.own(self.a, 0..rows, 0..self.problem.k)
    }

    /// The `index`-th of `count` chunks of this rank's shard, in its own buffer; empty if it has fewer.
    pub(super) fn own_chunk(&self, count: usize, index: usize) -> Region {
        let rows = shard(self.problem.m, self.rank, self.world).len();
        let rows = chunk(&(0..rows), index, count);
        self.builder.own(self.a, rows, 0..self.problem.k)
    }

    /// Where this rank's shard lies in the staging of `rank`.
    pub(super) fn staged_on(&self, rank: usize, staging: BufferId) -> Region {
        let rows = shard(self.problem.m, self.rank, self.world);
        self.builder.on(rank, staging, rows, 0..self.problem.k)
    }

    /// The sizes of a kernel that gathers and multiplies.
    pub(super) fn shape(&self) -> KernelShape {
        let Problem { m, n, k, dtype, .. } = self.problem;
        KernelShape { m, n, k, dtype }
    }

    /// The sizes of a kernel that only gathers.
    pub(super) fn gather_shape(&self) -> KernelShape {
        KernelShape {
            n: 0,
            ..self.shape()
        }
    }

    /// Multiplies the staged rows.
    pub(super) fn gemm(&mut self, provider: Provider, staging: BufferId) {
        let [a, b, c] = [staging, self.b, self.c].map(|id| self.builder.whole(id));
        self.builder.gemm(StreamId::MAIN, provider, a, b, c);
    }

    /// The rows of A that `rank` holds.
    pub(super) fn rows_of(&self, rank: usize) -> Range<usize> {
        self.problem.shard(rank, self.world)
    }

    /// These rows of A in the staging of `rank`.
    pub(super) fn staged_rows(&self, rank: usize, staging: BufferId, rows: Range<usize>) -> Region {
        self.builder.on(rank, staging, rows, 0..self.problem.k)
    }

    /// Pushes this rank's shard to rank r + 1, then r + 2 and so on, in `count` chunks with a signal after
    /// each, once the peer has given its credit in `free`. `ready` gives the slot for the step, from 1, and
    /// the number of the chunk.
    pub(super) fn push(
        &mut self,
        stream: StreamId,
        staging: BufferId,
        count: usize,
        free: SlotId,
        ready: impl Fn(usize, usize) -> SlotId,
    ) {
        let own = self.rows_of(self.rank);
        for (to, step) in self.builder.peers().into_iter().zip(1..) {
            self.builder.wait_credit(stream, free, [to]);
            for (chunk, rows) in chunks(own.clone(), count).enumerate() {
                let (start, end) = (rows.start - own.start, rows.end - own.start);
                let src = self.builder.own(self.a, start..end, 0..self.problem.k);
                let dst = self.staged_rows(to, staging, rows);
                self.builder.put(stream, src, dst, ready(step, chunk));
            }
        }
    }

    /// Pushes up to `count` rows of this rank's shard, from its first, to rank r + 1, then r + 2 and so on,
    /// in one piece each with a signal after it. Nothing from a rank without rows.
    pub(super) fn push_first(
        &mut self,
        stream: StreamId,
        staging: BufferId,
        count: usize,
        slot: SlotId,
    ) {
        let Range { start, end } = self.rows_of(self.rank);
        let rows = start..end.min(start + count);
        if rows.is_empty() {
            return;
        }
        for to in self.builder.peers() {
            let src = self.builder.own(self.a, 0..rows.len(), 0..self.problem.k);
            let dst = self.staged_rows(to, staging, rows.clone());
            self.builder.put(stream, src, dst, slot);
        }
    }

    /// Multiplies this rank's shard where it lies.
    pub(super) fn gemm_own(&mut self, stream: StreamId) {
        let (src, rows) = (self.own_shard(), self.rows_of(self.rank));
        self.gemm_of(stream, src, rows);
    }

    /// Multiplies these rows, which are in this rank's staging.
    pub(super) fn gemm_staged(&mut self, stream: StreamId, staging: BufferId, rows: Range<usize>) {
        let src = self.staged_rows(self.rank, staging, rows.clone());
        self.gemm_of(stream, src, rows);
    }

    /// Rows of C from rows of A by cuBLASLt; nothing where there are none.
    pub(super) fn gemm_of(&mut self, stream: StreamId, src: Region, rows: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let dst = self.builder.own(self.c, rows, 0..self.problem.n);
        let b = self.builder.whole(self.b);
        match self.bias.map(|bias| self.builder.whole(bias)) {
            None => {
                let provider = Provider::CublasLt;
                self.builder.gemm(stream, provider, src, b, dst);
            }
            bias => {
                let operands = (src, b, bias);
                self.builder.linear(stream, operands, dst, Batch::ONE);
            }
        }
    }
}
