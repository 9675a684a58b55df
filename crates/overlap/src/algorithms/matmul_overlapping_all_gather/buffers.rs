//! The buffers that the plans share, the GEMM and the collective.

use crate::operation::gathered_rows;
use crate::plan::{
    BufferId, Collective, Placement, PlanBuilder, Problem, Provider, Region, Role, StreamId,
    Transport,
};

/// A plan under construction, with its operands.
pub(super) struct Operands {
    pub(super) builder: PlanBuilder,
    /// A, B and C.
    gemm: [BufferId; 3],
    x: BufferId,
    y: BufferId,
    /// Rows of X on each rank.
    rows: usize,
    k: usize,
}

impl Operands {
    /// X is symmetric where peers read it, and Y where they write it.
    pub(super) fn new(
        name: &str,
        (rank, world): (usize, usize),
        problem: &Problem,
        [x, y]: [Placement; 2],
    ) -> Self {
        let Problem { m, n, k, dtype, .. } = *problem;
        let (rows, local) = (gathered_rows(problem), Placement::Local);
        let mut builder = PlanBuilder::new(name, rank, world);
        let mut buffer =
            |name, placement, role, shape| builder.buffer(name, placement, role, dtype, shape);
        let all = (world.saturating_mul(rows), k);
        Operands {
            gemm: [
                buffer("a", local, Role::Input, (m, k)),
                buffer("b", local, Role::Weight, (k, n)),
                buffer("c", local, Role::Output, (m, n)),
            ],
            x: buffer("x", x, Role::Input, (rows, k)),
            y: buffer("y", y, Role::Output, all),
            builder,
            rows,
            k,
        }
    }

    /// C by cuBLASLt.
    pub(super) fn multiply(&mut self, stream: StreamId) {
        let [a, b, c] = self.gemm.map(|id| self.builder.whole(id));
        self.builder.gemm(stream, Provider::CublasLt, a, b, c);
    }

    /// Y by a collective.
    pub(super) fn all_gather(&mut self, stream: StreamId, transport: Transport) {
        let [x, y] = [self.x, self.y].map(|id| self.builder.whole(id));
        self.builder
            .collective(stream, Collective::AllGather, x, y, transport);
    }

    /// The X of `from`, and its place in this rank's Y.
    pub(super) fn x_of(&self, from: usize) -> (Region, Region) {
        let rank = self.builder.draft().rank;
        let start = |rank: usize| rank.saturating_mul(self.rows);
        let x = self.builder.on(from, self.x, 0..self.rows, 0..self.k);
        let rows = start(from)..start(from + 1);
        (x, self.builder.on(rank, self.y, rows, 0..self.k))
    }
}
