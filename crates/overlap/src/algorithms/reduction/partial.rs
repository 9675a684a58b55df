//! The operands of a GEMM whose K is sharded, and the GEMMs of parts of its rows.

use crate::plan::{
    Batch, BufferId, Placement, PlanBuilder, Problem, Provider, Region, Role, StreamId, shard,
};
use std::ops::Range;

/// How B is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithms) enum Stored {
    /// K × N.
    Plain,
    /// N × K, as the weights of linear layers are.
    Transposed,
}

/// A plan under construction, with the operands of this rank's partial GEMM: its columns of A, its rows of B,
/// and C.
pub(in crate::algorithms) struct PartialGemm {
    pub(in crate::algorithms) builder: PlanBuilder,
    pub(in crate::algorithms) c: BufferId,
    pub(in crate::algorithms) a: BufferId,
    pub(in crate::algorithms) b: BufferId,
    stored: Stored,
    pub(in crate::algorithms) rank: usize,
    pub(in crate::algorithms) world: usize,
    pub(in crate::algorithms) problem: Problem,
}

impl PartialGemm {
    /// `c` has the rows `c_rows` of C.
    pub(in crate::algorithms) fn new(
        name: &str,
        (rank, world): (usize, usize),
        problem: &Problem,
        stored: Stored,
        (c_placement, c_rows): (Placement, Range<usize>),
    ) -> Self {
        let Problem { m, n, k, dtype, .. } = *problem;
        let depth = shard(k, rank, world).len();
        let of_b = match stored {
            Stored::Plain => (depth, n),
            Stored::Transposed => (n, depth),
        };
        let local = Placement::Local;
        let mut builder = PlanBuilder::new(name, rank, world);
        let a = builder.buffer("a", local, Role::Input, dtype, (m, depth));
        let b = builder.buffer("b", local, Role::Weight, dtype, of_b);
        let c = builder.buffer("c", c_placement, Role::Output, dtype, (c_rows.len(), n));
        PartialGemm {
            builder,
            c,
            a,
            b,
            stored,
            rank,
            world,
            problem: *problem,
        }
    }

    /// Adds a buffer of the plan's own, of `rows` rows of C.
    pub(in crate::algorithms) fn buffer(
        &mut self,
        name: &str,
        placement: Placement,
        rows: usize,
    ) -> BufferId {
        let Problem { n, dtype, .. } = self.problem;
        self.builder
            .buffer(name, placement, Role::Staging, dtype, (rows, n))
    }

    /// The rows of C that `rank` reduces.
    pub(in crate::algorithms) fn rows_of(&self, rank: usize) -> Range<usize> {
        self.problem.shard(rank, self.world)
    }

    /// All columns of these rows of this rank's copy of `buffer`.
    pub(in crate::algorithms) fn own(&self, buffer: BufferId, rows: Range<usize>) -> Region {
        self.on(self.rank, buffer, rows)
    }

    /// All columns of these rows of the copy of `rank`.
    pub(in crate::algorithms) fn on(
        &self,
        rank: usize,
        buffer: BufferId,
        rows: Range<usize>,
    ) -> Region {
        self.builder.on(rank, buffer, rows, 0..self.problem.n)
    }

    /// Multiplies `rows` of A into `c`; nothing where there are none.
    pub(in crate::algorithms) fn gemm(&mut self, stream: StreamId, rows: Range<usize>, c: Region) {
        if rows.is_empty() {
            return;
        }
        let [a, b] = [self.a, self.b].map(|id| self.builder.whole(id));
        let a = Region { rows, ..a };
        match self.stored {
            Stored::Plain => self.builder.gemm(stream, Provider::CublasLt, a, b, c),
            Stored::Transposed => self.builder.linear(stream, (a, b, None), c, Batch::ONE),
        };
    }
}
