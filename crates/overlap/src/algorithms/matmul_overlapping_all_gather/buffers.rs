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
    /// `y` is symmetric where peers write it and local where they do not.
    pub(super) fn new(
        name: &str,
        (rank, world): (usize, usize),
        problem: &Problem,
        y_placement: Placement,
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
            x: buffer("x", local, Role::Input, (rows, k)),
            y: buffer("y", y_placement, Role::Output, all),
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

    /// This rank's X, and its place in the Y of `to`.
    pub(super) fn x_to(&self, to: usize) -> (Region, Region) {
        let rank = self.builder.draft().rank;
        let start = |rank: usize| rank.saturating_mul(self.rows);
        let rows = start(rank)..start(rank + 1);
        let y = self.builder.on(to, self.y, rows, 0..self.k);
        (self.builder.whole(self.x), y)
    }
}
