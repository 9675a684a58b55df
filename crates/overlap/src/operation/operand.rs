//! The caller's side of a plan: which part of which matrix a buffer holds.

use crate::plan::{Problem, Role};
use std::ops::Range;
use warpweave_symm_mem::DType;

/// A matrix of the problem, the same for all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Matrix {
    /// M × K.
    A,
    /// K × N.
    B,
    /// 1 × N.
    Bias,
    /// M × N, or as many columns as the [activation](Problem::c_columns) leaves.
    C,
    /// What is gathered during a GEMM.
    X,
    /// X, gathered.
    Y,
    /// M × N: what is added to a GEMM's result before it is normalized.
    Residual,
    /// 1 × N: the weight of the RMSNorm.
    NormWeight,
    /// M × N: the sum that is normalized.
    ResidualOut,
    /// The scales of A, if it is of e4m3, as [`Scales`](crate::plan::Scales) says.
    ScalesA,
    /// The scales of B.
    ScalesB,
}

impl Matrix {
    /// Its element type.
    pub fn dtype(self, problem: &Problem) -> DType {
        match self {
            Matrix::A | Matrix::B | Matrix::X | Matrix::Y => problem.dtype,
            Matrix::ScalesA | Matrix::ScalesB => DType::F32,
            Matrix::Bias
            | Matrix::C
            | Matrix::Residual
            | Matrix::NormWeight
            | Matrix::ResidualOut => problem.output(),
        }
    }
}

/// A buffer of a plan that its caller writes or reads.
///
/// The buffer holds `rows` of the matrix, one range after the other from its first row, restricted to `cols`.
/// It may have more rows than these: shards may differ by a row, and a symmetric buffer has the rows of the
/// largest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name of the buffer in every plan of the operation.
    pub buffer: &'static str,
    /// The matrix.
    pub matrix: Matrix,
    /// Rows of the matrix.
    pub rows: Vec<Range<usize>>,
    /// Columns of the matrix.
    pub cols: Range<usize>,
    /// Whether the buffer holds the transpose of that part: a row of it is a column of the matrix.
    pub transposed: bool,
}

impl Operand {
    pub(super) fn new(
        buffer: &'static str,
        matrix: Matrix,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Self {
        Operand {
            buffer,
            matrix,
            rows: [rows].to_vec(),
            cols,
            transposed: false,
        }
    }

    pub(super) fn transposed(self) -> Self {
        Operand {
            transposed: true,
            ..self
        }
    }

    /// What the buffer is to the caller.
    pub fn role(&self) -> Role {
        match self.matrix {
            Matrix::A | Matrix::X | Matrix::Residual | Matrix::ScalesA => Role::Input,
            Matrix::B | Matrix::Bias | Matrix::NormWeight | Matrix::ScalesB => Role::Weight,
            Matrix::C | Matrix::Y | Matrix::ResidualOut => Role::Output,
        }
    }

    /// Rows and columns of the part, as stored.
    pub fn stored(&self) -> (usize, usize) {
        let rows = self.rows.iter().map(Range::len).sum();
        match self.transposed {
            false => (rows, self.cols.len()),
            true => (self.cols.len(), rows),
        }
    }
}
