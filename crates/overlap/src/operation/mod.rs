//! What is computed, apart from how: the problems that algorithms solve, and which parts of them each rank
//! holds.
//!
//! C\[M,N\] = A\[M,K\] · B\[K,N\] in every operation; what is sharded over the ranks, by [`shard`], and what
//! the GEMM waits for or is followed by, tells them apart.

mod operand;

use crate::former;
use crate::plan::{Problem, Scales, shard};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use warpweave_gemm::Scaling;
use warpweave_symm_mem::DType;

pub use operand::{Matrix, Operand};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Operation {
    /// A is sharded by rows, B whole on each rank; each rank gets all of C.
    AllGatherMatmul,
    /// A is sharded by columns, B by rows; each rank gets its rows of the sum of all GEMMs.
    MatmulReduceScatter,
    /// A is sharded by columns, B by rows; each rank gets the sum of all GEMMs.
    MatmulAllReduce,
    /// [`Operation::MatmulAllReduce`] as a linear layer: x\[t, 4h/d\] · W\[h, 4h/d\]ᵀ, with M = t, N = h, K =
    /// 4h and the weight stored N × K.
    RowParallelLinear,
    /// [`Operation::RowParallelLinear`] with the residual and RMSNorm that follow it in a transformer. Of x =
    /// A · Wᵀ it gives r = x + residual, and as C r / √(mean of r² + [ε](Operation::EPSILON)) · weight, row
    /// by row.
    RowParallelLinearNorm,
    /// [`Operation::MatmulReduceScatter`] as a linear layer, with the weight stored N × K.
    LinearReduceScatter,
    /// [`Operation::AllGatherMatmul`] as a linear layer with a bias: A · Wᵀ + bias, with the weight stored N
    /// × K; or what the problem's [activation](Problem::activation) makes of it.
    ColumnParallelLinear,
    /// A GEMM on each rank, overlapped with an independent all-gather: of M/2 rows of K elements from each
    /// rank, which is 64 MiB at 8192 × 8192 × 8192 f16.
    MatmulOverlappingAllGather,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 8] = [
        Operation::AllGatherMatmul,
        Operation::MatmulReduceScatter,
        Operation::MatmulAllReduce,
        Operation::RowParallelLinear,
        Operation::RowParallelLinearNorm,
        Operation::LinearReduceScatter,
        Operation::ColumnParallelLinear,
        Operation::MatmulOverlappingAllGather,
    ];

    /// What the RMSNorm of [`Operation::RowParallelLinearNorm`] adds to the mean of squares, as Llama 3 does.
    pub const EPSILON: f32 = 1e-5;

    /// The name in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::AllGatherMatmul => "all-gather-matmul",
            Operation::MatmulReduceScatter => "matmul-reduce-scatter",
            Operation::MatmulAllReduce => "matmul-all-reduce",
            Operation::RowParallelLinear => "row-parallel-linear",
            Operation::RowParallelLinearNorm => "row-parallel-linear-norm",
            Operation::LinearReduceScatter => "linear-reduce-scatter",
            Operation::ColumnParallelLinear => "column-parallel-linear",
            Operation::MatmulOverlappingAllGather => "matmul-overlapping-all-gather",
        }
    }

    /// The caller's buffers of `rank`: what it writes before a call, and what it reads after one.
    ///
    /// `rows` are the rows of A that the rank holds, where A is sharded by rows and they are not contiguous.
    pub fn operands(
        self,
        (rank, world): (usize, usize),
        problem: &Problem,
        rows: Option<Vec<Range<usize>>>,
    ) -> Vec<Operand> {
        let Problem { m, n, k, .. } = *problem;
        let mine = |total: usize| shard(total, rank, world);
        let shard_of_a = || {
            let shard = Operand::new("a", Matrix::A, mine(m), 0..k);
            match rows.clone() {
                Some(rows) => Operand { rows, ..shard },
                None => shard,
            }
        };
        let gathered = gathered_rows(problem);
        let operand = Operand::new;
        let (a, b, c) = (Matrix::A, Matrix::B, Matrix::C);
        let is_scaled = problem.scaling != Scaling::None;
        let [of_a, of_b] = Scales::shapes(problem.scaling, (m, n, k));
        let weight = |terms, transposed: bool| {
            let weight = operand("b", b, terms, 0..n);
            match problem.stores_b_transposed(transposed) {
                true => weight.transposed(),
                false => weight,
            }
        };
        let scales = |[cols_a, cols_b]: [Range<usize>; 2]| {
            let scales_a = operand("scales_a", Matrix::ScalesA, 0..of_a.0, cols_a);
            let scales_b = operand("scales_b", Matrix::ScalesB, 0..of_b.0, cols_b);
            [scales_a, scales_b].into_iter().filter(move |_| is_scaled)
        };
        // Each rank has scales of its own: some columns of the matrices of all.
        let own_scales = || scales(Scales::columns_of(rank, world, problem));
        let partial_gemm = |transposed, rows| {
            let matrices = [
                operand("a", a, 0..m, mine(k)),
                weight(mine(k), transposed),
                operand("c", c, rows, 0..n),
            ];
            matrices.into_iter().chain(own_scales()).collect()
        };
        // Scales are sharded with their rows.
        let gathered_scales = || {
            let all = scales([0..of_a.1, 0..of_b.1]);
            all.map(|scales| match (scales.matrix, problem.scaling) {
                (Matrix::ScalesA, Scaling::Row | Scaling::Block) => Operand {
                    rows: shard_of_a().rows,
                    ..scales
                },
                _ => scales,
            })
        };
        match self {
            Operation::AllGatherMatmul => {
                let c = operand("c", c, 0..m, 0..n);
                let matrices = [shard_of_a(), weight(0..k, false), c];
                matrices.into_iter().chain(gathered_scales()).collect()
            }
            Operation::MatmulReduceScatter => partial_gemm(false, mine(m)),
            Operation::MatmulAllReduce => partial_gemm(false, 0..m),
            Operation::RowParallelLinear => partial_gemm(true, 0..m),
            Operation::LinearReduceScatter => partial_gemm(true, mine(m)),
            Operation::RowParallelLinearNorm => {
                let matrices = [
                    operand("a", a, 0..m, mine(k)),
                    weight(mine(k), true),
                    operand("residual", Matrix::Residual, 0..m, 0..n),
                    operand("norm_weight", Matrix::NormWeight, 0..1, 0..n),
                    operand("c", c, 0..m, 0..n),
                    operand("residual_out", Matrix::ResidualOut, 0..m, 0..n),
                ];
                matrices.into_iter().chain(own_scales()).collect()
            }
            Operation::ColumnParallelLinear => {
                let matrices = [
                    shard_of_a(),
                    weight(0..k, true),
                    operand("bias", Matrix::Bias, 0..1, 0..n),
                    operand("c", c, 0..m, 0..problem.c_columns()),
                ];
                matrices.into_iter().chain(gathered_scales()).collect()
            }
            Operation::MatmulOverlappingAllGather => vec![
                operand("a", a, 0..m, 0..k),
                operand("b", b, 0..k, 0..n),
                operand("x", Matrix::X, rank * gathered..(rank + 1) * gathered, 0..k),
                operand("c", c, 0..m, 0..n),
                operand("y", Matrix::Y, 0..world * gathered, 0..k),
            ],
        }
    }

    /// The fewest bytes that must come into a rank.
    pub fn bytes_in(self, world: usize, problem: &Problem) -> f64 {
        let Problem { m, n, k, dtype, .. } = *problem;
        let others = |rows: usize, cols: usize, dtype: DType| {
            let bytes = (rows * cols * dtype.size()) as f64;
            bytes * world.saturating_sub(1) as f64 / world.max(1) as f64
        };
        let partials = others(m, n, problem.output());
        match self {
            Operation::AllGatherMatmul | Operation::ColumnParallelLinear => others(m, k, dtype),
            Operation::MatmulReduceScatter | Operation::LinearReduceScatter => partials,
            Operation::MatmulAllReduce
            | Operation::RowParallelLinear
            | Operation::RowParallelLinearNorm => 2.0 * partials,
            Operation::MatmulOverlappingAllGather => {
                others(world * gathered_rows(problem), k, dtype)
            }
        }
    }

    /// The GEMM that a rank computes by itself: rows and columns of its result, and its K.
    pub fn gemm(self, world: usize, problem: &Problem) -> (usize, usize, usize) {
        let Problem { m, n, k, .. } = *problem;
        match self {
            Operation::AllGatherMatmul
            | Operation::ColumnParallelLinear
            | Operation::MatmulOverlappingAllGather => (m, n, k),
            Operation::MatmulReduceScatter
            | Operation::LinearReduceScatter
            | Operation::MatmulAllReduce
            | Operation::RowParallelLinear
            | Operation::RowParallelLinearNorm => (m, n, k.div_ceil(world.max(1))),
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let name = former::current(name);
        let named = |operation: &Operation| operation.name() == name;
        Operation::ALL.into_iter().find(named).ok_or_else(|| {
            let known = Operation::ALL.map(Operation::name).join(", ");
            format!("there is no operation `{name}`; known are {known}")
        })
    }
}

/// Rows that each rank gives to the all-gather of [`Operation::MatmulOverlappingAllGather`].
pub(crate) fn gathered_rows(problem: &Problem) -> usize {
    (problem.m / 2).max(1)
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
