//! A blocked GEMM: panels of A and B are widened to f32 and multiplied tile by tile, and each element of C is
//! rounded once.

use half::{bf16, f16};
use warpweave_symm_mem::host::record;
use warpweave_symm_mem::{DType, with_element};

use super::Element;
use super::scales::Scales;
use super::tile::{COLUMNS, ROWS};
use crate::{Activation, Error, GATE_COLUMNS, GemmOperands, GemmProblem, Layout};

/// Rows of C computed together: the widened panel of A stays in the L2 cache for K up to a few thousand.
const PANEL_ROWS: usize = 128;
/// Columns of B multiplied together: the widening of A costs one conversion per this many multiply-adds.
const PANEL_COLS: usize = 512;
const _: () = assert!(PANEL_COLS.is_multiple_of(2 * GATE_COLUMNS));

/// C = A·B on slices: f32 accumulation, one rounding.
///
/// # Errors
/// [`Error::InvalidProblem`], and [`Error::Operand`] if an element type or a length does not fit the problem.
pub fn multiply<T: Element, O: Element>(
    problem: &GemmProblem,
    a: &[T],
    b: &[T],
    c: &mut [O],
) -> Result<(), Error> {
    multiply_with_bias(problem, a, b, &[], c)
}

/// C = A·B + bias on slices: the bias is added in f32, before the one rounding, if the problem says so.
///
/// # Errors
/// As [`multiply`].
pub fn multiply_with_bias<T: Element, O: Element>(
    problem: &GemmProblem,
    a: &[T],
    b: &[T],
    bias: &[O],
    c: &mut [O],
) -> Result<(), Error> {
    multiply_with_scales(problem, (a, &[]), (b, &[]), bias, c)
}

/// C = A·B + bias on slices, with the scales of A and of B, [`GemmProblem::scales_len`], where the problem
/// has them.
///
/// # Errors
/// As [`multiply`].
pub fn multiply_with_scales<T: Element, O: Element>(
    problem: &GemmProblem,
    (a, scales_a): (&[T], &[f32]),
    (b, scales_b): (&[T], &[f32]),
    bias: &[O],
    c: &mut [O],
) -> Result<(), Error> {
    problem.validate()?;
    for (operand, got, wanted) in [
        ("A", T::DTYPE, problem.dtype),
        ("B", T::DTYPE, problem.dtype),
        ("C", O::DTYPE, problem.out),
    ] {
        if got != wanted {
            return Err(Error::Operand {
                operand,
                problem: Box::new(*problem),
                reason: format!("the slice holds {got}, the problem says {wanted}"),
            });
        }
    }
    check_len(problem, "A", a.len(), problem.a_len())?;
    check_len(problem, "B", b.len(), problem.b_len())?;
    check_len(problem, "C", c.len(), problem.c_len())?;
    check_len(problem, "bias", bias.len(), problem.bias_len())?;
    let scales = check_scales(problem, [scales_a, scales_b])?;
    let bias = &bias[..problem.bias_len()];
    // SAFETY: the slices hold every element that the problem addresses, as just checked, and C is borrowed
    // exclusively.
    unsafe {
        batched(
            problem,
            a.as_ptr(),
            b.as_ptr(),
            scales,
            bias,
            c.as_mut_ptr(),
        )
    };
    Ok(())
}

/// C = A·B, with the bias if the problem has one, on host addresses, for memory that is shared with other
/// processes.
///
/// # Errors
/// [`Error::InvalidProblem`], and [`Error::Operand`] for a null or misaligned address.
///
/// # Safety
/// - A, B, C, the bias and the scales hold [`GemmProblem::a_len`], [`GemmProblem::b_len`],
///   [`GemmProblem::c_len`], [`GemmProblem::bias_len`] and [`GemmProblem::scales_len`] elements.
/// - C overlaps none of the others, and nothing else writes these or accesses the elements of C meanwhile.
///   Elements between the rows are not touched.
pub unsafe fn multiply_raw(problem: &GemmProblem, operands: GemmOperands) -> Result<(), Error> {
    problem.validate()?;
    check_addresses(problem, operands)?;
    // SAFETY: the caller vouches for the ranges; the addresses are aligned for the types chosen here.
    unsafe {
        with_element!(problem.dtype, T => match problem.out {
            out if out == problem.dtype => typed::<T, T>(problem, operands),
            DType::F32 => typed::<T, f32>(problem, operands),
            DType::F16 if problem.dtype == DType::E4m3 => typed::<T, f16>(problem, operands),
            DType::Bf16 if problem.dtype == DType::E4m3 => typed::<T, bf16>(problem, operands),
            out => {
                return Err(Error::InvalidProblem {
                    problem: Box::new(*problem),
                    reason: format!("no host GEMM of {} stored as {out}", problem.dtype),
                });
            }
        })
    }
    Ok(())
}

pub(super) fn check_addresses(problem: &GemmProblem, operands: GemmOperands) -> Result<(), Error> {
    operands.check(problem, alignment)
}

/// Bytes that the addresses of elements are multiples of.
pub(super) fn alignment(dtype: DType) -> u64 {
    dtype.size() as u64
}

pub(super) fn check_len(
    problem: &GemmProblem,
    operand: &'static str,
    got: usize,
    needed: usize,
) -> Result<(), Error> {
    if got >= needed {
        return Ok(());
    }
    Err(Error::Operand {
        operand,
        problem: Box::new(*problem),
        reason: format!("{got} elements are too few, {needed} are needed"),
    })
}

/// The scales that the problem uses.
pub(super) fn check_scales<'a>(
    problem: &GemmProblem,
    [a, b]: [&'a [f32]; 2],
) -> Result<Scales<'a>, Error> {
    let [of_a, of_b] = problem.scales_len();
    check_len(problem, "scales of A", a.len(), of_a)?;
    check_len(problem, "scales of B", b.len(), of_b)?;
    Ok(Scales { a, b })
}

/// Rows of A widened to f32, with the strides between logical rows and columns.
struct PanelA {
    data: Vec<f32>,
    row_stride: usize,
    col_stride: usize,
}

impl PanelA {
    fn with_capacity(elements: usize) -> Self {
        Self {
            data: vec![0.0; elements],
            row_stride: 0,
            col_stride: 0,
        }
    }

    /// Widens `rows` rows of `k` elements from `row` on.
    ///
    /// # Safety
    /// They lie inside the matrix at `from`, whose elements nothing writes meanwhile.
    unsafe fn load<T: Element>(
        &mut self,
        (from, layout, ld): (*const T, Layout, usize),
        (row, rows): (usize, usize),
        k: usize,
    ) {
        let ((first, count), (offset, len)) = match layout {
            Layout::RowMajor => ((row, rows), (0, k)),
            Layout::Transposed => ((0, k), (row, rows)),
        };
        for (i, to) in self.data.chunks_exact_mut(len).take(count).enumerate() {
            // SAFETY: stored row `first + i` holds `len` elements from `offset` on, inside the matrix.
            let stored = unsafe { record::read(from.add((first + i) * ld + offset), len) };
            T::widen(stored, to);
        }
        (self.row_stride, self.col_stride) = match layout {
            Layout::RowMajor => (len, 1),
            Layout::Transposed => (1, len),
        };
    }

    /// The elements of `rows` rows from `row` on, by k. The lanes of rows beyond keep what they had.
    fn lanes(&self, (row, rows): (usize, usize), lanes: &mut [[f32; ROWS]]) {
        for r in 0..rows {
            let elements = &self.data[(row + r) * self.row_stride..];
            for (lane, element) in lanes
                .iter_mut()
                .zip(elements.iter().step_by(self.col_stride))
            {
                lane[r] = *element;
            }
        }
    }
}

/// Columns of B widened to f32: `[columns / COLUMNS][k][COLUMNS]`.
struct PanelB {
    data: Vec<[f32; COLUMNS]>,
    /// A stored row of the panel.
    wide: Vec<f32>,
}

impl PanelB {
    fn with_capacity((k, cols): (usize, usize)) -> Self {
        Self {
            data: vec![[0.0; COLUMNS]; cols.div_ceil(COLUMNS) * k],
            wide: vec![0.0; cols.max(k)],
        }
    }

    /// Widens `cols` columns of `k` elements from `col` on. Columns of the last block beyond them keep what
    /// they had.
    ///
    /// # Safety
    /// They lie inside the matrix at `from`, whose elements nothing writes meanwhile.
    unsafe fn load<T: Element>(
        &mut self,
        (from, layout, ld): (*const T, Layout, usize),
        (col, cols): (usize, usize),
        k: usize,
    ) {
        let ((first, count), (offset, len)) = match layout {
            Layout::RowMajor => ((0, k), (col, cols)),
            Layout::Transposed => ((col, cols), (0, k)),
        };
        let wide = &mut self.wide[..len];
        for i in 0..count {
            // SAFETY: stored row `first + i` holds `len` elements from `offset` on, inside the matrix.
            let stored = unsafe { record::read(from.add((first + i) * ld + offset), len) };
            T::widen(stored, wide);
            match layout {
                Layout::RowMajor => {
                    for (block, columns) in wide.chunks(COLUMNS).enumerate() {
                        self.data[block * k + i][..columns.len()].copy_from_slice(columns);
                    }
                }
                Layout::Transposed => {
                    let block = &mut self.data[i / COLUMNS * k..][..k];
                    for (to, element) in block.iter_mut().zip(&*wide) {
                        to[i % COLUMNS] = *element;
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`multiply_raw`], with element types that match the problem and aligned addresses.
unsafe fn typed<T: Element, O: Element>(problem: &GemmProblem, operands: GemmOperands) {
    let bias: &[O] = if problem.bias {
        // SAFETY: the caller vouches for n elements at this aligned address, which nothing writes meanwhile.
        unsafe { record::read(operands.bias.as_host(), problem.n) }
    } else {
        &[]
    };
    let scales = |which: usize| match problem.scales_len()[which] {
        0 => &[][..],
        // SAFETY: the caller vouches for so many scales at this aligned address, which nothing writes
        // meanwhile.
        len => unsafe { record::read(operands.scales[which].as_host::<f32>(), len) },
    };
    let scales = Scales {
        a: scales(0),
        b: scales(1),
    };
    let (a, b) = (operands.a.as_host::<T>(), operands.b.as_host::<T>());
    // SAFETY: the caller's obligation.
    unsafe { batched(problem, a, b, scales, bias, operands.c.as_host()) };
}

/// # Safety
/// As [`multiply_raw`], with element types that match the problem and aligned addresses; `bias` holds
/// [`GemmProblem::bias_len`] elements.
unsafe fn batched<T: Element, O: Element>(
    p: &GemmProblem,
    a: *const T,
    b: *const T,
    scales: Scales<'_>,
    bias: &[O],
    c: *mut O,
) {
    let mut wide = vec![0.0f32; bias.len()];
    O::widen(bias, &mut wide);
    for i in 0..p.batch.count {
        // SAFETY: the extents that the caller vouches for include the matrices of GEMM `i`, `i` strides on.
        unsafe {
            blocked(
                p,
                a.add(i * p.batch.a_stride),
                b.add(i * p.batch.b_stride),
                scales,
                &wide,
                c.add(i * p.batch.c_stride),
            );
        }
    }
}

/// One GEMM of the batch.
///
/// # Safety
/// As [`batched`], for the matrices of one GEMM.
unsafe fn blocked<T: Element, O: Element>(
    p: &GemmProblem,
    a: *const T,
    b: *const T,
    scales: Scales<'_>,
    bias: &[f32],
    c: *mut O,
) {
    let rows_max = PANEL_ROWS.min(p.m);
    let cols_max = PANEL_COLS.min(p.n);
    let mut a_panel = PanelA::with_capacity(rows_max * p.k);
    let mut b_panel = PanelB::with_capacity((p.k, cols_max));
    let mut lanes = vec![[0.0f32; ROWS]; p.k];
    let mut sums = vec![0.0f32; ROWS * cols_max];
    for col in (0..p.n).step_by(PANEL_COLS) {
        let cols = PANEL_COLS.min(p.n - col);
        // SAFETY: columns `col..col + cols` exist in B.
        unsafe { b_panel.load((b, p.b_layout, p.ldb), (col, cols), p.k) };
        for row in (0..p.m).step_by(PANEL_ROWS) {
            let rows = PANEL_ROWS.min(p.m - row);
            // SAFETY: rows `row..row + rows` exist in A.
            unsafe { a_panel.load((a, p.a_layout, p.lda), (row, rows), p.k) };
            for first in (0..rows).step_by(ROWS) {
                let count = ROWS.min(rows - first);
                a_panel.lanes((first, count), &mut lanes);
                for (block, b) in b_panel.data.chunks_exact(p.k).enumerate() {
                    let from = block * COLUMNS;
                    let Some(width) = cols.checked_sub(from).filter(|&left| left > 0) else {
                        break;
                    };
                    let width = width.min(COLUMNS);
                    let at = (row + first, col + from);
                    for (i, tile) in scales.sums(p, at, &lanes, b).iter().enumerate() {
                        sums[i * cols + from..][..width].copy_from_slice(&tile[..width]);
                    }
                }
                for (i, sum) in sums.chunks_exact_mut(cols).take(count).enumerate() {
                    for (sum, bias) in sum.iter_mut().zip(bias.iter().skip(col)) {
                        *sum += bias;
                    }
                    let (col, cols) = (p.activation.columns(col), p.activation.columns(cols));
                    if p.activation == Activation::SwiGlu {
                        swiglu(sum);
                    }
                    let at = (row + first + i) * p.ldc + col;
                    // SAFETY: this row of C holds `cols` elements from `col` on, which are ours alone.
                    O::round(&sum[..cols], unsafe { record::write(c.add(at), cols) });
                }
            }
        }
    }
}

/// [`Activation::SwiGlu`] of whole groups of columns; the results take the place of the first half.
fn swiglu(columns: &mut [f32]) {
    for group in 0..columns.len() / (2 * GATE_COLUMNS) {
        for j in 0..GATE_COLUMNS {
            let gate = columns[2 * GATE_COLUMNS * group + j];
            let up = columns[2 * GATE_COLUMNS * group + GATE_COLUMNS + j];
            columns[GATE_COLUMNS * group + j] = gate / (1.0 + (-gate).exp()) * up;
        }
    }
}

#[cfg(test)]
mod tests {
    use float8::F8E4M3;

    use super::super::{reference, reference_with_bias, reference_with_scales};
    use crate::Scaling;

    use super::*;
    use warpweave_symm_mem::DevicePtr;

    fn values<T: Element>(len: usize, seed: u32, integers: bool) -> Vec<T> {
        let mut state = seed;
        let raw: Vec<f32> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let bits = state >> 8;
                if integers {
                    (bits % 7) as f32 - 3.0
                } else {
                    bits as f32 / (1 << 23) as f32 - 1.0
                }
            })
            .collect();
        let mut out = vec![T::default(); len];
        T::round(&raw, &mut out);
        out
    }

    fn compare<T: Element, O: Element>(problem: GemmProblem, integers: bool) {
        let a = values::<T>(problem.a_len(), 1, integers);
        let b = values::<T>(problem.b_len(), 2, integers);
        let mut c = vec![O::default(); problem.c_len()];
        multiply(&problem, &a, &b, &mut c).unwrap();
        let exact = reference(&problem, &a, &b).unwrap();
        for i in 0..problem.m {
            for j in 0..problem.n {
                let got = c[i * problem.ldc + j].to_f64();
                let want = exact[i * problem.n + j];
                // One rounding of the result, and f32 sums of k terms of size at most one.
                let bound = if integers {
                    0.0
                } else {
                    want.abs() * O::DTYPE.epsilon() / 2.0 + problem.k as f64 * DType::F32.epsilon()
                };
                assert!(
                    (got - want).abs() <= bound,
                    "{problem} ({i},{j}): {got} != {want}"
                );
            }
        }
    }

    /// Against f64: the sums of gate and up are of k + 1 terms of size at most one, and so are off by less
    /// than (k + 1)² · ε; silu is off by at most 1.1 of what its argument is, and a few roundings follow.
    #[test]
    fn swiglu_matches_the_definition() {
        for (m, n, k) in [(1, 16, 1), (37, 1040, 29), (130, 512, 64)] {
            for layout in [Layout::RowMajor, Layout::Transposed] {
                let problem = GemmProblem::new(m, n, k, DType::F32)
                    .with_layouts(Layout::RowMajor, layout)
                    .with_bias()
                    .with_activation(Activation::SwiGlu);
                let wide = GemmProblem {
                    ldc: problem.ldc + 3,
                    ..problem
                };
                let a = values::<f32>(problem.a_len(), 1, false);
                let b = values::<f32>(problem.b_len(), 2, false);
                let bias = values::<f32>(problem.bias_len(), 3, false);
                let exact = reference_with_bias(&problem, &a, &b, &bias).unwrap();
                assert_eq!(exact.len(), m * n / 2);
                for problem in [problem, wide] {
                    let mut c = vec![7.0f32; problem.c_len()];
                    multiply_with_bias(&problem, &a, &b, &bias, &mut c).unwrap();
                    let size = (k + 1) as f64;
                    let bound = (2.1 * size + 4.0) * size * size * DType::F32.epsilon();
                    for (i, want) in exact.iter().enumerate() {
                        let at = i / (n / 2) * problem.ldc + i % (n / 2);
                        let off = (f64::from(c[at]) - want).abs();
                        assert!(off <= bound, "{problem} {i}: {}, not {want}", c[at]);
                    }
                    let between = c.chunks(problem.ldc).flat_map(|row| row.iter().skip(n / 2));
                    assert!(between.into_iter().all(|c| *c == 7.0), "{problem}");
                }
            }
        }
    }

    /// Small enough for integers of size 3: sums stay below 2⁸, exact in bf16.
    const SHAPES: [(usize, usize, usize); 5] = [
        (1, 1, 1),
        (3, 5, 7),
        (129, 17, 28),
        (130, 515, 25),
        (64, 64, 28),
    ];

    fn all_layouts(check: impl Fn(GemmProblem), dtype: DType) {
        for (m, n, k) in SHAPES {
            for a in [Layout::RowMajor, Layout::Transposed] {
                for b in [Layout::RowMajor, Layout::Transposed] {
                    let tight = GemmProblem::new(m, n, k, dtype).with_layouts(a, b);
                    check(tight);
                    check(tight.with_leading_dimensions(
                        tight.lda + 3,
                        tight.ldb + 1,
                        tight.ldc + 5,
                    ));
                }
            }
        }
    }

    #[test]
    fn f16_matches_the_definition() {
        all_layouts(|p| compare::<f16, f16>(p, true), DType::F16);
        all_layouts(|p| compare::<f16, f16>(p, false), DType::F16);
        all_layouts(
            |p| compare::<f16, f32>(p.with_output(DType::F32), false),
            DType::F16,
        );
    }

    #[test]
    fn bf16_matches_the_definition() {
        all_layouts(|p| compare::<bf16, bf16>(p, true), DType::Bf16);
        all_layouts(|p| compare::<bf16, bf16>(p, false), DType::Bf16);
        all_layouts(
            |p| compare::<bf16, f32>(p.with_output(DType::F32), true),
            DType::Bf16,
        );
    }

    #[test]
    fn f32_matches_the_definition() {
        all_layouts(|p| compare::<f32, f32>(p, false), DType::F32);
    }

    /// Against f64: each term, its scale, the sum of its step and the sums of steps are rounded in f32.
    #[test]
    fn scaled_e4m3_matches_the_definition() {
        for (scaling, layout) in [
            (Scaling::Tensor, Layout::RowMajor),
            (Scaling::Row, Layout::RowMajor),
            (Scaling::Block, Layout::RowMajor),
            (Scaling::Block, Layout::Transposed),
        ] {
            for (m, n, k) in [(1, 1, 1), (37, 300, 129), (130, 17, 400)] {
                let problem = GemmProblem::e4m3(m, n, k, scaling, DType::F32).with_bias();
                let problem = problem.with_block_scales(layout);
                let a = values::<F8E4M3>(problem.a_len(), 1, false);
                let b = values::<F8E4M3>(problem.b_len(), 2, false);
                let [of_a, of_b] = problem.scales_len();
                let (of_a, of_b) = (values::<f32>(of_a, 3, false), values::<f32>(of_b, 4, false));
                let bias = values::<f32>(n, 5, false);
                let mut c = vec![0.0f32; problem.c_len()];
                multiply_with_scales(&problem, (&a, &of_a), (&b, &of_b), &bias, &mut c).unwrap();
                let exact =
                    reference_with_scales(&problem, (&a, &of_a), (&b, &of_b), &bias).unwrap();
                // Elements and scales are at most one.
                let bound = (k + 4) as f64 * DType::F32.epsilon();
                for (i, (got, want)) in c.iter().zip(&exact).enumerate() {
                    let off = (f64::from(*got) - want).abs();
                    assert!(off <= bound, "{problem} {i}: {got}, not {want}");
                }
                let error = multiply_with_scales(&problem, (&a, &[]), (&b, &of_b), &bias, &mut c);
                let text = error.unwrap_err().to_string();
                assert!(text.contains("scales of A"), "{text}");
            }
        }
    }

    /// Row by row or as cuBLASLt takes them, the same scales give the same bits.
    #[test]
    fn scales_by_block_are_stored_in_two_ways() {
        let (m, n, k) = (37, 24, 300);
        let transposed = GemmProblem::e4m3(m, n, k, Scaling::Block, DType::F32);
        let rows = transposed.with_block_scales(Layout::RowMajor);
        let [of_a, of_b] = rows.scales_len();
        let (a, b) = (
            values::<F8E4M3>(rows.a_len(), 1, false),
            values::<F8E4M3>(rows.b_len(), 2, false),
        );
        let (by_row, of_b) = (values::<f32>(of_a, 3, false), values::<f32>(of_b, 4, false));
        let blocks = of_a / m;
        let by_block: Vec<f32> = (0..of_a).map(|i| by_row[i % m * blocks + i / m]).collect();
        let [one, other] = [(rows, by_row), (transposed, by_block)].map(|(problem, of_a)| {
            let mut c = vec![0.0f32; problem.c_len()];
            multiply_with_scales(&problem, (&a, &of_a), (&b, &of_b), &[], &mut c).unwrap();
            c
        });
        assert_eq!(one, other);
        assert!(one.iter().any(|c| *c != 0.0));
    }

    #[test]
    fn long_sums_are_rounded_once() {
        // 4096 halves sum to 2048; f16 partial sums would lose the odd unit that f32 keeps until the end.
        let k = 4097;
        let problem = GemmProblem::new(1, 1, k, DType::F16).with_output(DType::F32);
        let a = vec![f16::from_f32(1.0); k];
        let b = vec![f16::from_f32(1.0); k];
        let mut c = [0.0f32];
        multiply(&problem, &a, &b, &mut c).unwrap();
        assert_eq!(c[0], 4097.0);
    }

    #[test]
    fn wrong_operands_are_refused() {
        let problem = GemmProblem::new(4, 4, 4, DType::F16);
        let short = [f16::ZERO; 15];
        let full = [f16::ZERO; 16];
        let mut c = [f16::ZERO; 16];
        let error = multiply(&problem, &full, &short, &mut c).unwrap_err();
        assert!(error.to_string().contains("operand B"), "{error}");
        let error = multiply(&problem, &[0.0f32; 16], &[0.0f32; 16], &mut c).unwrap_err();
        assert!(error.to_string().contains("holds f32"), "{error}");
        // SAFETY: the null address is refused before anything is read.
        let error = unsafe {
            let (b, c) = (full.as_ptr() as u64, c.as_mut_ptr() as u64);
            multiply_raw(
                &problem,
                GemmOperands::new(DevicePtr::NULL, DevicePtr(b), DevicePtr(c)),
            )
        };
        assert!(matches!(error, Err(Error::Operand { operand: "A", .. })));
        let error = multiply(&problem.with_bias(), &full, &full, &mut c).unwrap_err();
        assert!(error.to_string().contains("operand bias"), "{error}");
    }
}
