//! Inputs: every element is a function of its matrix, its input set and its place. So each rank makes only
//! the parts that it needs.

mod sets;
mod source;

use std::ops::Range;

use warpweave_overlap::Operation;
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Problem, Role, Scales, Scaling, shard};

pub use sets::{InputSets, Stored};
pub use source::Source;
pub(crate) use source::mix;

/// What kind of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Numbers {
    /// Integers from −2 to 2: every sum of products is exact in f32, so each element of C has one right
    /// value. Where partials are summed over the ranks, A has so few that are not 0 that every
    /// partial sum is exact in the element type; where the GEMM is large, so few that the reference takes a
    /// moment.
    Integers,
    /// Uniform in \[−1, 1\), rounded to the element type. Scales are ½ or 1 with integers, and uniform in
    /// \[½, 1\) with reals.
    Reals,
}

/// The inputs of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// What kind of numbers.
    pub numbers: Numbers,
    /// The set: this number modulo the number of sets of this kind.
    pub index: usize,
}

impl Set {
    /// A set of what candidates are timed with.
    pub const fn reals(index: usize) -> Self {
        let numbers = Numbers::Reals;
        Self { numbers, index }
    }
}

/// The largest product of two of the integers.
const LARGEST_PRODUCT: usize = 4;

/// The smallest product of two scales of integers is 1 by this.
const SCALE_PRODUCTS: usize = 4;

/// Multiply-adds of a GEMM whose reference the host computes in a second or so with all of its cores.
const LARGE: usize = 1 << 38;

/// Integers other than 0 in a row of A where the GEMM is large.
const FEW: usize = 64;

/// The global matrices of an operation on a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrices {
    /// Sizes and element type.
    pub problem: Problem,
    /// How many ranks each have a partial of every element, rounded to the element type before the reduction;
    /// 1 where there is no reduction.
    pub summands: usize,
    /// Whether a bias is added to each row of C.
    pub biased: bool,
    /// Whether C is added to a residual and normalized.
    pub normalized: bool,
}

impl Matrices {
    /// Those of `operation` among `world` ranks; of a GEMM without communication if there is none.
    pub fn of(operation: Option<Operation>, world: usize, problem: &Problem) -> Self {
        let split = |operation: &Operation| operation.gemm(world, problem).2 < problem.k;
        let operands = operation.map(|o| o.operands((0, world), problem, None));
        let has = |matrix| operands.iter().flatten().any(|o| o.matrix == matrix);
        Self {
            problem: *problem,
            summands: operation.filter(split).map_or(1, |_| world),
            biased: has(Matrix::Bias),
            normalized: has(Matrix::NormWeight),
        }
    }

    /// The elements of an input matrix. Weights are the same in all sets of a kind.
    pub fn source(&self, matrix: Matrix, Set { numbers, index }: Set) -> Source {
        let Problem { n, k, .. } = self.problem;
        let (place, cols) = match matrix {
            Matrix::A => (0, k),
            Matrix::B => (1, n),
            Matrix::Bias => (2, n),
            Matrix::Residual => (4, n),
            Matrix::NormWeight => (5, n),
            Matrix::ScalesA => (6, self.scales()[0].1),
            Matrix::ScalesB => (7, self.scales()[1].1),
            // Y holds X; the others are computed.
            Matrix::X | Matrix::Y | Matrix::C | Matrix::ResidualOut => (3, k),
        };
        let set = match matrix {
            Matrix::B | Matrix::Bias | Matrix::NormWeight | Matrix::ScalesB => 0,
            _ => index as u64,
        };
        Source {
            numbers,
            seed: set << 3 | place,
            dtype: matrix.dtype(&self.problem),
            is_scale: matches!(matrix, Matrix::ScalesA | Matrix::ScalesB),
            cols,
            stride: match (matrix, numbers) {
                (Matrix::A, Numbers::Integers) => self.stride(),
                _ => 1,
            },
        }
    }

    /// Rows and columns of the scales of A and of B; where partials are summed over the ranks, of all ranks
    /// side by side.
    pub fn scales(&self) -> [(usize, usize); 2] {
        let Problem {
            m, n, k, scaling, ..
        } = self.problem;
        let shapes = Scales::shapes(scaling, (m, n, k));
        match self.summands {
            1 => shapes,
            ranks => {
                let [of_a, of_b] = Scales::columns_of(ranks - 1, ranks, &self.problem);
                [(shapes[0].0, of_a.end), (shapes[1].0, of_b.end)]
            }
        }
    }

    /// Whether the reference of dense inputs takes the host seconds.
    pub fn is_large(&self) -> bool {
        let Problem { m, n, k, .. } = self.problem;
        m.saturating_mul(n).saturating_mul(k) > LARGE
    }

    /// Of this many adjacent columns of A, one holds integers other than 0.
    ///
    /// With T terms of a sum that are not 0, every sum of some of them is an integer of at most 4·T. f16
    /// holds all integers up to 2¹¹, bf16 up to 2⁸, f32 up to 2²⁴: with T a quarter of that, whatever is
    /// rounded, in whatever order, is exact. With scales of ½ or 1 sums are multiples of ¼.
    fn stride(&self) -> usize {
        if self.summands == 1 {
            return match self.is_large() {
                true => self.problem.k.div_ceil(FEW),
                false => 1,
            };
        }
        // The integer up to which all are elements: 2 to the number of digits.
        let exact = (2.0 / self.problem.output().epsilon()) as usize;
        let largest = match self.problem.scaling {
            Scaling::None => LARGEST_PRODUCT,
            _ => LARGEST_PRODUCT * SCALE_PRODUCTS,
        };
        self.problem.k.div_ceil(exact / largest)
    }

    /// The columns of A and rows of B whose products the `summand`-th rank adds.
    pub fn terms(&self, summand: usize) -> Range<usize> {
        shard(self.problem.k, summand, self.summands)
    }
}

/// A box of a matrix in a buffer of this name.
pub(crate) fn part(
    buffer: &'static str,
    matrix: Matrix,
    rows: Range<usize>,
    cols: Range<usize>,
) -> Operand {
    Operand {
        buffer,
        matrix,
        rows: [rows].into(),
        cols,
        transposed: false,
    }
}

/// Every row of the matrix that a buffer has, in the order of the buffer.
pub(crate) fn rows_of(operand: &Operand) -> Vec<usize> {
    operand.rows.iter().cloned().flatten().collect()
}

/// How many of `items` each of `threads` threads takes; with fewer than `least` one costs more than it saves.
pub(crate) fn share(items: usize, threads: usize, least: usize) -> usize {
    items.div_ceil(threads.max(1)).max(least)
}

/// Does `work` on each of `shares`, every one on a thread of its own. The results are in order.
pub(crate) fn on_threads<S: Send, T: Send>(
    shares: impl Iterator<Item = S>,
    work: impl Fn(S) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = shares
            .map(|share| scope.spawn(move || work(share)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The operands of this role.
pub fn with_role(operands: &[Operand], role: Role) -> impl Iterator<Item = &Operand> {
    operands.iter().filter(move |o| o.role() == role)
}

#[cfg(test)]
pub(crate) mod tests;
