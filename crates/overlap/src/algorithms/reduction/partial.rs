//! The operands of a GEMM whose K is sharded, and the GEMMs of parts of its rows.

use crate::error::PlanError;
use crate::kernels::KernelScales;
use crate::plan::{
    Activation, Batch, BufferId, OpKind, Placement, Plan, PlanBuilder, Problem, Provider, Region,
    Role, Scales, Scaling, StreamId, layout_of, shard,
};
use std::ops::Range;
use warpweave_symm_mem::{DType, Priority};

/// How B is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::algorithms) enum Stored {
    /// K × N.
    Plain,
    /// N × K, as the weights of linear layers are.
    Transposed,
}

/// A plan under construction, with the operands of this rank's partial GEMM: its columns of A, its rows of B,
/// and C. Of e4m3 each rank has scales of its own, and partials are scaled before they are rounded.
pub(in crate::algorithms) struct PartialGemm {
    pub(in crate::algorithms) builder: PlanBuilder,
    pub(in crate::algorithms) c: BufferId,
    pub(in crate::algorithms) a: BufferId,
    pub(in crate::algorithms) b: BufferId,
    pub(in crate::algorithms) b_transposed: bool,
    pub(in crate::algorithms) scales: Option<KernelScales>,
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
        let Problem {
            m,
            n,
            k,
            dtype,
            scaling,
            ..
        } = *problem;
        let depth = shard(k, rank, world).len();
        let is_scaled = scaling != Scaling::None;
        let b_transposed = problem.stores_b_transposed(stored == Stored::Transposed);
        let of_b = layout_of(b_transposed).stored(depth, n);
        let local = Placement::Local;
        let mut builder = PlanBuilder::new(name, rank, world);
        let a = builder.buffer("a", local, Role::Input, dtype, (m, depth));
        let b = builder.buffer("b", local, Role::Weight, dtype, of_b);
        let of_c = (c_rows.len(), n);
        let c = builder.buffer("c", c_placement, Role::Output, problem.output(), of_c);
        let scales = is_scaled.then(|| {
            let [of_a, of_b] = Scales::shapes(scaling, (m, n, depth));
            let mut buffer =
                |name, role, shape| builder.buffer(name, local, role, DType::F32, shape);
            KernelScales {
                scaling,
                a: buffer("scales_a", Role::Input, of_a),
                b: buffer("scales_b", Role::Weight, of_b),
            }
        });
        PartialGemm {
            builder,
            c,
            a,
            b,
            b_transposed,
            scales,
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
        let shape = (rows, self.problem.n);
        self.builder
            .buffer(name, placement, Role::Staging, self.problem.output(), shape)
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

    /// A stream for communication, ordered after the work on `earlier` so far; made when it is first needed.
    pub(in crate::algorithms) fn after(
        &mut self,
        stream: &mut Option<StreamId>,
        earlier: StreamId,
    ) -> StreamId {
        match *stream {
            Some(stream) => {
                self.builder.order(earlier, stream);
                stream
            }
            None => *stream.insert(self.builder.fork_from(earlier, Priority::High)),
        }
    }

    /// The plan of a world of one: one GEMM.
    pub(in crate::algorithms) fn alone(mut self) -> Result<Plan, PlanError> {
        let c = self.builder.whole(self.c);
        self.gemm(StreamId::MAIN, 0..self.problem.m, c);
        self.builder.finish()
    }

    /// Multiplies `rows` of A into `c`; nothing where there are none.
    pub(in crate::algorithms) fn gemm(&mut self, stream: StreamId, rows: Range<usize>, c: Region) {
        if rows.is_empty() {
            return;
        }
        let [a, b] = [self.a, self.b].map(|id| self.builder.whole(id));
        let scales = self.scales.map(|KernelScales { scaling, a, b }| {
            let [of_a, of_b] = [a, b].map(|id| self.builder.whole(id));
            let a = match scaling {
                Scaling::Tensor => of_a,
                _ => Region {
                    rows: rows.clone(),
                    ..of_a
                },
            };
            Scales {
                scaling,
                a,
                b: of_b,
            }
        });
        let gemm = OpKind::Gemm {
            activation: Activation::None,
            a: Region { rows, ..a },
            b,
            c,
            bias: None,
            scales,
            b_transposed: self.b_transposed,
            batch: Batch::ONE,
            provider: Scales::provider_of_rows(self.problem.scaling, Provider::CublasLt),
        };
        self.builder.push(stream, gemm);
    }
}
