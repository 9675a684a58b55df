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

/// Which implementation computes a GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// NVIDIA's cuBLASLt, loaded at run time.
    CublasLt,
    /// The CUTLASS SM90 kernels of this crate (feature `cutlass`).
    Cutlass,
    /// The hand-written SM90 kernel of this crate (feature `nvcc`).
    Sm90,
    /// The CPU reference; the only one on the host backend, where it stands in for the others too.
    Host,
}

impl Provider {
    /// The name used in tables and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Provider::CublasLt => "cublaslt",
            Provider::Cutlass => "cutlass",
            Provider::Sm90 => "sm90",
            Provider::Host => "host",
        }
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A compiled shape of the hand-written SM90 kernel, with its run-time argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Index into [`sm90::CONFIGS`](crate::sm90::CONFIGS), or that of
    /// [`sm90::FEW_ROWS_TILING`](crate::sm90::FEW_ROWS_TILING).
    pub config: usize,
    /// Swizzle width of the [`Raster`](crate::sm90::Raster), in rows of cluster tiles; at least 1.
    pub swizzle: u32,
}

/// By what the sums of e4m3 operands are multiplied: an element of A or B stands for its e4m3 times its
/// scale.
///
/// Scales are f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// By nothing: operands of other types.
    #[default]
    None,
    /// One scale for A, and one for B.
    Tensor,
    /// m scales, one for each row of A, and n, one for each column of B.
    Row,
    /// One for each [`SCALE_BLOCK`] elements of a row of A, as a matrix of m rows that is stored in one of
    /// [two ways](GemmProblem::block_scales). One for each block of 128×128 of B: of columns from 128·j and
    /// elements from 128·p on at `j * l + p`, with l the blocks along K rounded up to a multiple of 4.
    Block,
}

impl Scaling {
    /// The name used on command lines and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Scaling::None => "none",
            Scaling::Tensor => "tensor",
            Scaling::Row => "row",
            Scaling::Block => "block",
        }
    }

    /// What follows the element type in tables and errors, if there are scales: ` scales by row`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Scaling::None => "",
            Scaling::Tensor => " scales by tensor",
            Scaling::Row => " scales by row",
            Scaling::Block => " scales by block",
        }
    }
}

/// Elements along K, and columns of B, that share a scale of [`Scaling::Block`].
pub const SCALE_BLOCK: usize = 128;

/// What is stored of a GEMM's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activation {
    /// The results themselves.
    #[default]
    None,
    /// SwiGLU (Shazeer, 2020): silu(gate) · up, in f32, with one rounding. The columns of B, and of the bias,
    /// alternate between [`GATE_COLUMNS`] of the gate and those of the same places of up. With X = A·B +
    /// bias, element (i, 8·g + j) of C is silu(X\[i, 16·g + j\]) · X\[i, 16·g + 8 + j\], where silu(x) = x /
    /// (1 + e⁻ˣ). C has n / 2 columns.
    SwiGlu,
}

impl Activation {
    /// Columns of C, of n columns of B.
    pub const fn columns(self, n: usize) -> usize {
        match self {
            Activation::None => n,
            Activation::SwiGlu => n / 2,
        }
    }

    /// Columns of B, of so many of C.
    pub const fn sums(self, columns: usize) -> usize {
        match self {
            Activation::None => columns,
            Activation::SwiGlu => columns.saturating_mul(2),
        }
    }

    /// Columns of B that belong together: n is a multiple of so many.
    pub const fn group(self) -> usize {
        match self {
            Activation::None => 1,
            Activation::SwiGlu => 2 * GATE_COLUMNS,
        }
    }

    /// What follows the element type in tables and errors, if there is one: ` swiglu`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Activation::None => "",
            Activation::SwiGlu => " swiglu",
        }
    }
}

/// Contiguous columns of the gate, and of up, with [`Activation::SwiGlu`].
pub const GATE_COLUMNS: usize = 8;

/// GEMMs of one shape that are computed together: the matrices of GEMM i start i strides after those of the
/// first.
///
/// The default is a single GEMM, whose strides mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmBatch {
    /// Number of GEMMs.
    pub count: usize,
    /// Distance between successive A, in elements; 0 if all GEMMs read the same A.
    pub a_stride: usize,
    /// Distance between successive B, in elements; 0 if all GEMMs read the same B.
    pub b_stride: usize,
    /// Distance between successive C, in elements: at least the extent of one C, so that no GEMM writes into
    /// another's.
    pub c_stride: usize,
}

impl Default for GemmBatch {
    fn default() -> Self {
        Self::ONE
    }
}

impl GemmBatch {
    /// A single GEMM.
    pub const ONE: Self = Self {
        count: 1,
        a_stride: 0,
        b_stride: 0,
        c_stride: 0,
    };
}

/// C\[m,n\] = A\[m,k\]·B\[k,n\] (+ bias\[n\]) with f32 accumulation and one rounding to `out` at the end,
/// once or for a batch. With an [`Activation`] C has [fewer columns](GemmProblem::c_columns).
///
/// C is always row-major. Leading dimensions count elements and may exceed the row length, so that a GEMM can
/// read and write boxes of larger matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B, and of C without an activation.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Element type of A and B.
    pub dtype: DType,
    /// Element type of C: `dtype` or [`DType::F32`]; of e4m3 operands f32, f16 or bf16.
    pub out: DType,
    /// Of e4m3 operands, and of no others: sums of 128 terms are added and scaled in f32, before the bias is
    /// added.
    pub scaling: Scaling,
    /// How the scales of A are stored with [`Scaling::Block`]: row by row, so that those of some rows are
    /// contiguous, or transposed, as cuBLASLt takes them. It means nothing otherwise.
    pub block_scales: Layout,
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
    /// Whether a vector of n contiguous elements of type `out` is added to every row of every GEMM, in f32
    /// before the rounding.
    ///
    /// `out`, f32 for an f32 output of f16 or bf16 inputs too, is the type that cuBLASLt takes for it:
    /// `cublasLt.h` says at `CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE` that the bias has the output's type but for
    /// integer and fp8 kernels.
    pub bias: bool,
    /// What C is of the sums. Of the providers [`Provider::Sm90`] and [`Provider::Host`] have others than
    /// [`Activation::None`].
    pub activation: Activation,
    /// How many such GEMMs, and where.
    pub batch: GemmBatch,
    /// Whether the algorithm must be batch-invariant: the bits of a row of C depend on its row of A, B and
    /// the bias alone, not on m, on the row's place or on the tile that is chosen. Between providers, and
    /// between problems that differ in more than m and the batch, bits may differ all the same.
    ///
    /// Every algorithm of [`Provider::Sm90`] and [`Provider::Host`] is: an element is summed from k = 0
    /// upwards, by whatever tile. Of [`Provider::Cutlass`] those without stream-K are chosen. Of
    /// [`Provider::CublasLt`] one algorithm is taken for all m, which adds up the terms of an element in
    /// one sequence; NVIDIA does not promise more. The fused kernels always are.
    pub batch_invariant: bool,
    /// Whether no work that a launch is enqueued after writes B while it may still run, as with weights: a
    /// kernel may then load B while the one before it in the stream ends. It reads A when that has ended.
    pub constant_b: bool,
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
            scaling: Scaling::None,
            block_scales: Layout::Transposed,
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            lda: k,
            ldb: n,
            ldc: n,
            bias: false,
            activation: Activation::None,
            batch: GemmBatch::ONE,
            batch_invariant: false,
            constant_b: false,
        }
    }

    /// A problem of contiguous e4m3 operands with scales: A row-major, B transposed, C of type `out`, scales
    /// as cuBLASLt takes them.
    pub const fn e4m3(m: usize, n: usize, k: usize, scaling: Scaling, out: DType) -> Self {
        let problem = Self {
            scaling,
            ..Self::new(m, n, k, DType::E4m3)
        };
        problem
            .with_output(out)
            .with_layouts(Layout::RowMajor, Layout::Transposed)
    }

    /// Stores C as `out`.
    #[must_use]
    pub const fn with_output(mut self, out: DType) -> Self {
        self.out = out;
        self
    }

    /// Stores the scales of A by block as given.
    #[must_use]
    pub const fn with_block_scales(mut self, layout: Layout) -> Self {
        self.block_scales = layout;
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

    /// Adds a bias to every row.
    #[must_use]
    pub const fn with_bias(mut self) -> Self {
        self.bias = true;
        self
    }

    /// Stores what the activation makes of the sums, contiguously.
    #[must_use]
    pub const fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self.ldc = activation.columns(self.n);
        self
    }

    /// Asks for a batch-invariant algorithm.
    #[must_use]
    pub const fn with_batch_invariance(mut self) -> Self {
        self.batch_invariant = true;
        self
    }

    /// Promises that [B is constant](Self::constant_b).
    #[must_use]
    pub const fn with_constant_b(mut self) -> Self {
        self.constant_b = true;
        self
    }

    /// Computes a batch of such GEMMs.
    #[must_use]
    pub const fn with_batch(mut self, batch: GemmBatch) -> Self {
        self.batch = batch;
        self
    }

    /// Floating-point operations of the multiplications: 2·m·n·k for each GEMM.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64 * self.batch.count as f64
    }

    /// Columns of C.
    pub const fn c_columns(&self) -> usize {
        self.activation.columns(self.n)
    }

    /// Elements from the first to the last of A, inclusive, over the whole batch.
    pub fn a_len(&self) -> usize {
        let one = extent(self.a_layout.stored(self.m, self.k), self.lda);
        extent((self.batch.count, one), self.batch.a_stride)
    }

    /// Elements from the first to the last of B, inclusive, over the whole batch.
    pub fn b_len(&self) -> usize {
        let one = extent(self.b_layout.stored(self.k, self.n), self.ldb);
        extent((self.batch.count, one), self.batch.b_stride)
    }

    /// Elements from the first to the last of C, inclusive, over the whole batch.
    pub fn c_len(&self) -> usize {
        extent((self.batch.count, self.one_c()), self.batch.c_stride)
    }

    /// Elements of the bias: n, or none.
    pub const fn bias_len(&self) -> usize {
        if self.bias { self.n } else { 0 }
    }

    /// Number of scales of A and of B.
    pub const fn scales_len(&self) -> [usize; 2] {
        match self.scaling {
            Scaling::None => [0, 0],
            Scaling::Tensor => [1, 1],
            Scaling::Row => [self.m, self.n],
            Scaling::Block => [
                self.m * self.k.div_ceil(SCALE_BLOCK),
                self.n.div_ceil(SCALE_BLOCK) * self.scale_stride(),
            ],
        }
    }

    /// From the scales of 128 columns of B to those of the next, with [`Scaling::Block`].
    pub const fn scale_stride(&self) -> usize {
        self.k.div_ceil(SCALE_BLOCK).next_multiple_of(4)
    }

    /// From the scales of a row of A to those of the next, and from that of 128 elements of a row to that of
    /// the next 128, with [`Scaling::Block`].
    pub const fn block_scale_steps(&self) -> [usize; 2] {
        match self.block_scales {
            Layout::RowMajor => [self.k.div_ceil(SCALE_BLOCK), 1],
            Layout::Transposed => [1, self.m],
        }
    }

    fn one_c(&self) -> usize {
        extent((self.m, self.c_columns()), self.ldc)
    }

    /// Checks what every provider needs: positive extents that fit in 31 bits, leading dimensions that hold a
    /// row, an output type that is one of those of the inputs, scales where they belong, at least one GEMM,
    /// whole groups of gate and up, outputs that do not overlap, and matrices that fit into an address space.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`].
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |reason: String| {
            Err(Error::InvalidProblem {
                problem: Box::new(*self),
                reason,
            })
        };
        for (name, extent) in [
            ("m", self.m),
            ("n", self.n),
            ("k", self.k),
            ("batch count", self.batch.count),
        ] {
            if extent == 0 || extent > i32::MAX as usize {
                return invalid(format!("{name} = {extent} must lie in 1..={}", i32::MAX));
            }
        }
        let rows = [
            ("lda", self.lda, self.a_layout.stored(self.m, self.k).1),
            ("ldb", self.ldb, self.b_layout.stored(self.k, self.n).1),
            ("ldc", self.ldc, self.c_columns()),
        ];
        for (name, ld, row) in rows {
            if ld < row || ld > i32::MAX as usize {
                return invalid(format!(
                    "{name} = {ld} must hold a row of {row} elements and fit in 31 bits"
                ));
            }
        }
        let (n, group) = (self.n, self.activation.group());
        if !n.is_multiple_of(group) {
            return invalid(format!(
                "n = {n} must be a multiple of {group}, {GATE_COLUMNS} columns of the gate and of up each"
            ));
        }
        let is_scaled = self.scaling != Scaling::None;
        if is_scaled != (self.dtype == DType::E4m3) {
            return invalid("operands of e4m3 have scales, and those of other types none".into());
        }
        if is_scaled && self.out == DType::E4m3 {
            return invalid("C can be stored as f32, f16 or bf16, not as e4m3".into());
        }
        if is_scaled && self.batch.count != 1 {
            return invalid("GEMMs of a batch have no scales".into());
        }
        if !is_scaled && self.out != self.dtype && self.out != DType::F32 {
            return invalid(format!(
                "inputs of {} can be stored as {} or f32, not as {}",
                self.dtype, self.dtype, self.out
            ));
        }
        if self.batch.count > 1 && self.batch.c_stride < self.one_c() {
            return invalid(format!(
                "c_stride = {} must be at least {}, the extent of one C, or the GEMMs overlap",
                self.batch.c_stride,
                self.one_c()
            ));
        }
        for (name, len, dtype) in [
            ("A", self.a_len(), self.dtype),
            ("B", self.b_len(), self.dtype),
            ("C", self.c_len(), self.out),
        ] {
            if len > isize::MAX as usize / dtype.size() {
                return invalid(format!("{name} does not fit into an address space"));
            }
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
        f.write_str(self.scaling.suffix())?;
        if self.bias {
            f.write_str(" +bias")?;
        }
        f.write_str(self.activation.suffix())?;
        let GemmBatch {
            count,
            a_stride,
            b_stride,
            c_stride,
        } = self.batch;
        if count != 1 {
            write!(f, " batch {count} by {a_stride},{b_stride},{c_stride}")?;
        }
        if self.batch_invariant {
            f.write_str(" batch-invariant")?;
        }
        Ok(())
    }
}

/// Elements from the first to the last of `rows` rows of `cols` elements, `ld` apart; saturates, for
/// `validate` to see.
fn extent((rows, cols): (usize, usize), ld: usize) -> usize {
    if rows == 0 || cols == 0 {
        0
    } else {
        (rows - 1).saturating_mul(ld).saturating_add(cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_extents_are_gemms() {
        let p = GemmProblem::new(5, 7, 3, DType::F16);
        assert_eq!((p.a_len(), p.b_len(), p.c_len()), (15, 21, 35));
        let t = p.with_layouts(Layout::Transposed, Layout::Transposed);
        assert_eq!((t.lda, t.ldb), (5, 3));
        assert_eq!((t.a_len(), t.b_len()), (15, 21));
        assert!(t.validate().is_ok());
    }

    #[test]
    fn scales_are_counted() {
        let of = |scaling| GemmProblem::e4m3(5, 300, 700, scaling, DType::F32);
        assert_eq!(of(Scaling::Tensor).scales_len(), [1, 1]);
        assert_eq!(of(Scaling::Row).scales_len(), [5, 300]);
        assert_eq!(of(Scaling::Block).scales_len(), [5 * 6, 3 * 8]);
        of(Scaling::Block).validate().unwrap();
        let text = of(Scaling::Block).to_string();
        assert_eq!(text, "5x300x700 e4m3->f32 B^T scales by block");
    }

    #[test]
    fn padded_extents_end_with_the_last_element() {
        let p = GemmProblem::new(5, 7, 3, DType::F16).with_leading_dimensions(8, 16, 9);
        assert_eq!((p.a_len(), p.b_len(), p.c_len()), (35, 39, 43));
    }

    #[test]
    fn extents_include_the_batch() {
        let batch = |count, a_stride, b_stride, c_stride| GemmBatch {
            count,
            a_stride,
            b_stride,
            c_stride,
        };
        let p = GemmProblem::new(5, 7, 3, DType::F16);
        let three = p.with_batch(batch(3, 20, 0, 35));
        assert_eq!((three.a_len(), three.b_len(), three.c_len()), (55, 21, 105));
        assert_eq!(three.flops(), 3.0 * p.flops());
        three.validate().unwrap();
        // The strides of a single GEMM mean nothing.
        let single = p.with_batch(batch(1, 20, 30, 1));
        assert_eq!(single.c_len(), 35);
        single.validate().unwrap();
        assert_eq!((p.bias_len(), p.with_bias().bias_len()), (0, 7));
    }

    #[test]
    fn biases_and_batches_are_shown() {
        let p = GemmProblem::new(5, 7, 3, DType::F16);
        assert_eq!(p.to_string(), "5x7x3 f16");
        let batch = GemmBatch {
            count: 2,
            a_stride: 15,
            b_stride: 0,
            c_stride: 40,
        };
        assert_eq!(
            p.with_bias().with_batch(batch).to_string(),
            "5x7x3 f16 +bias batch 2 by 15,0,40"
        );
        assert_eq!(
            p.with_batch_invariance().to_string(),
            "5x7x3 f16 batch-invariant"
        );
    }

    #[test]
    fn bad_problems_are_named() {
        let p = GemmProblem::new(4, 4, 4, DType::Bf16);
        let narrow = GemmProblem::e4m3(4, 4, 4, Scaling::Row, DType::Bf16);
        let batch = |count, a_stride, c_stride| {
            p.with_batch(GemmBatch {
                count,
                a_stride,
                b_stride: 0,
                c_stride,
            })
        };
        let cases = [
            (batch(0, 16, 16), "batch count = 0"),
            (batch(2, 16, 15), "c_stride = 15 must be at least 16"),
            (batch(3, usize::MAX / 2, 16), "A does not fit"),
            (batch(3, 0, usize::MAX), "C does not fit"),
            (GemmProblem { m: 0, ..p }, "m = 0"),
            (GemmProblem { k: 1 << 31, ..p }, "k = 2147483648"),
            (GemmProblem { ldb: 3, ..p }, "ldb = 3"),
            (p.with_output(DType::F16), "not as f16"),
            (
                GemmProblem {
                    scaling: Scaling::Row,
                    ..p
                },
                "of other types none",
            ),
            (
                GemmProblem {
                    scaling: Scaling::None,
                    ..narrow
                },
                "of e4m3 have scales",
            ),
            (narrow.with_output(DType::E4m3), "not as e4m3"),
            (narrow.with_batch(batch(2, 16, 16).batch), "a batch have"),
        ];
        for (problem, needle) in cases {
            let text = problem.validate().unwrap_err().to_string();
            assert!(text.contains(needle), "{text}");
        }
    }
}
