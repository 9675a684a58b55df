//! What is to be multiplied: shapes, element types, layouts and leading dimensions.

use std::fmt;

use warpweave_symm_mem::DType;

use crate::Error;

/// How the elements of a logical matrix lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Row after row: element (i, j) of the matrix lies at `i * ld + j`.
    #[default]
    RowMajor,
    /// The transposed matrix row after row, which is column-major order: element (i, j) lies at `j * ld + i`.
    Transposed,
}

impl Layout {
    /// Number of stored rows and stored columns of a logical `rows` × `cols` matrix.
    pub const fn stored(self, rows: usize, cols: usize) -> (usize, usize) {
        match self {
            Layout::RowMajor => (rows, cols),
            Layout::Transposed => (cols, rows),
        }
    }
}

/// Which implementation computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// NVIDIA's cuBLASLt, loaded at run time.
    CublasLt,
    /// The CUTLASS SM90 kernels of this crate (feature `cutlass`).
    Cutlass,
    /// The CPU reference; the only one on the host backend, where it stands in for the others too.
    Host,
}

impl Provider {
    /// The name used in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Provider::CublasLt => "cublaslt",
            Provider::Cutlass => "cutlass",
            Provider::Host => "host",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// C\[m,n\] = A\[m,k\]·B\[k,n\] with f32 accumulation and one rounding to `out` at the end.
///
/// C is always row-major. Leading dimensions count elements and may exceed the row length, so that a product can read and
/// write boxes of larger matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Element type of A and B.
    pub dtype: DType,
    /// Element type of C: `dtype` or [`DType::F32`].
    pub out: DType,
    /// How A is stored.
    pub a_layout: Layout,
    /// How B is stored.
    pub b_layout: Layout,
    /// Distance between stored rows of A, in elements.
    pub lda: usize,
    /// Distance between stored rows of B, in elements.
    pub ldb: usize,
    /// Distance between rows of C, in elements.
    pub ldc: usize,
}

impl GemmProblem {
    /// A problem of contiguous row-major matrices whose output has the element type of the inputs.
    pub const fn new(m: usize, n: usize, k: usize, dtype: DType) -> Self {
        Self {
            m,
            n,
            k,
            dtype,
            out: dtype,
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            lda: k,
            ldb: n,
            ldc: n,
        }
    }

    /// Stores C as `out`.
    #[must_use]
    pub const fn with_output(mut self, out: DType) -> Self {
        self.out = out;
        self
    }

    /// Stores A and B as given, contiguously.
    #[must_use]
    pub const fn with_layouts(mut self, a: Layout, b: Layout) -> Self {
        self.a_layout = a;
        self.b_layout = b;
        self.lda = a.stored(self.m, self.k).1;
        self.ldb = b.stored(self.k, self.n).1;
        self
    }

    /// Sets the leading dimensions, in elements. Call it after [`with_layouts`](Self::with_layouts).
    #[must_use]
    pub const fn with_leading_dimensions(mut self, lda: usize, ldb: usize, ldc: usize) -> Self {
        self.lda = lda;
        self.ldb = ldb;
        self.ldc = ldc;
        self
    }

    /// Floating-point operations: 2·m·n·k.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Elements from the first to the last of A, inclusive.
    pub fn a_len(&self) -> usize {
        extent(self.a_layout.stored(self.m, self.k), self.lda)
    }

    /// Elements from the first to the last of B, inclusive.
    pub fn b_len(&self) -> usize {
        extent(self.b_layout.stored(self.k, self.n), self.ldb)
    }

    /// Elements from the first to the last of C, inclusive.
    pub fn c_len(&self) -> usize {
        extent((self.m, self.n), self.ldc)
    }

    /// Checks what every provider needs: positive extents that fit in 31 bits, leading dimensions that hold a row, and an
    /// output type that is the input type or f32.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |reason: String| {
            Err(Error::InvalidProblem {
                problem: *self,
                reason,
            })
        };
        for (name, extent) in [("m", self.m), ("n", self.n), ("k", self.k)] {
            if extent == 0 || extent > i32::MAX as usize {
                return invalid(format!("{name} = {extent} must lie in 1..={}", i32::MAX));
            }
        }
        let rows = [
            ("lda", self.lda, self.a_layout.stored(self.m, self.k).1),
            ("ldb", self.ldb, self.b_layout.stored(self.k, self.n).1),
            ("ldc", self.ldc, self.n),
        ];
        for (name, ld, row) in rows {
            if ld < row || ld > i32::MAX as usize {
                return invalid(format!(
                    "{name} = {ld} must hold a row of {row} elements and fit in 31 bits"
                ));
            }
        }
        if self.out != self.dtype && self.out != DType::F32 {
            return invalid(format!(
                "inputs of {} can be stored as {} or f32, not as {}",
                self.dtype, self.dtype, self.out
            ));
        }
        Ok(())
    }
}

impl fmt::Display for GemmProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{} {}", self.m, self.n, self.k, self.dtype)?;
        if self.out != self.dtype {
            write!(f, "->{}", self.out)?;
        }
        for (name, layout) in [("A", self.a_layout), ("B", self.b_layout)] {
            if layout == Layout::Transposed {
                write!(f, " {name}^T")?;
            }
        }
        Ok(())
    }
}

fn extent((rows, cols): (usize, usize), ld: usize) -> usize {
    if rows == 0 || cols == 0 {
        0
    } else {
        (rows - 1) * ld + cols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_extents_are_products() {
        let p = GemmProblem::new(5, 7, 3, DType::F16);
        assert_eq!((p.a_len(), p.b_len(), p.c_len()), (15, 21, 35));
        let t = p.with_layouts(Layout::Transposed, Layout::Transposed);
        assert_eq!((t.lda, t.ldb), (5, 3));
        assert_eq!((t.a_len(), t.b_len()), (15, 21));
        assert!(t.validate().is_ok());
    }

    #[test]
    fn padded_extents_end_with_the_last_element() {
        let p = GemmProblem::new(5, 7, 3, DType::F16).with_leading_dimensions(8, 16, 9);
        assert_eq!((p.a_len(), p.b_len(), p.c_len()), (35, 39, 43));
    }

    #[test]
    fn bad_problems_are_named() {
        let p = GemmProblem::new(4, 4, 4, DType::Bf16);
        let cases = [
            (GemmProblem { m: 0, ..p }, "m = 0"),
            (GemmProblem { k: 1 << 31, ..p }, "k = 2147483648"),
            (GemmProblem { ldb: 3, ..p }, "ldb = 3"),
            (p.with_output(DType::F16), "not as f16"),
        ];
        for (problem, needle) in cases {
            let text = problem.validate().unwrap_err().to_string();
            assert!(text.contains(needle), "{text}");
        }
    }
}
