//! The GEMM that the others are judged by.

use super::Element;
use crate::{Activation, Error, GATE_COLUMNS, GemmProblem, Layout};

/// C = A·B by the definition, every sum in f64 and never rounded: all elements of C for each GEMM of the
/// batch, row-major and contiguous whatever `problem.ldc` and the batch's stride say.
///
/// It takes about a second for 2⁹ elements each way; [`multiply`](super::multiply) is the fast one.
///
/// # Errors
/// [`Error::InvalidProblem`], and [`Error::Operand`] if a slice is shorter than [`GemmProblem::a_len`] or
/// [`GemmProblem::b_len`].
pub fn reference<T: Element>(problem: &GemmProblem, a: &[T], b: &[T]) -> Result<Vec<f64>, Error> {
    reference_with_bias::<T, T>(problem, a, b, &[])
}

/// As [`reference()`], with `bias` added to every row if the problem says so.
///
/// # Errors
/// As [`reference()`], and [`Error::Operand`] if the bias is shorter than [`GemmProblem::bias_len`].
pub fn reference_with_bias<T: Element, O: Element>(
    problem: &GemmProblem,
    a: &[T],
    b: &[T],
    bias: &[O],
) -> Result<Vec<f64>, Error> {
    reference_with_scales(problem, (a, &[]), (b, &[]), bias)
}

/// As [`reference_with_bias`], with the scales of A and of B.
///
/// # Errors
/// As [`reference_with_bias`], and [`Error::Operand`] for fewer scales than [`GemmProblem::scales_len`].
pub fn reference_with_scales<T: Element, O: Element>(
    problem: &GemmProblem,
    (a, scales_a): (&[T], &[f32]),
    (b, scales_b): (&[T], &[f32]),
    bias: &[O],
) -> Result<Vec<f64>, Error> {
    problem.validate()?;
    super::panels::check_len(problem, "A", a.len(), problem.a_len())?;
    super::panels::check_len(problem, "B", b.len(), problem.b_len())?;
    super::panels::check_len(problem, "bias", bias.len(), problem.bias_len())?;
    let scales = super::panels::check_scales(problem, [scales_a, scales_b])?;
    let at = |layout: Layout, ld: usize, i: usize, j: usize| match layout {
        Layout::RowMajor => i * ld + j,
        Layout::Transposed => j * ld + i,
    };
    let (m, batch) = (problem.m, problem.batch);
    let mut c = vec![0.0; batch.count * m * problem.n];
    for (row_of_all, row) in c.chunks_exact_mut(problem.n).enumerate() {
        let (gemm, i) = (row_of_all / m, row_of_all % m);
        let (a, b) = (&a[gemm * batch.a_stride..], &b[gemm * batch.b_stride..]);
        for (sum, bias) in row.iter_mut().zip(&bias[..problem.bias_len()]) {
            *sum = bias.to_f64();
        }
        for p in 0..problem.k {
            let x = a[at(problem.a_layout, problem.lda, i, p)].to_f64();
            for (j, sum) in row.iter_mut().enumerate() {
                let term = x * b[at(problem.b_layout, problem.ldb, p, j)].to_f64();
                *sum += term * scales.of_term(problem, (i, j), p);
            }
        }
    }
    Ok(match problem.activation {
        Activation::None => c,
        Activation::SwiGlu => c.chunks_exact(2 * GATE_COLUMNS).flat_map(swiglu).collect(),
    })
}

/// SwiGLU of a group of columns.
fn swiglu(group: &[f64]) -> impl Iterator<Item = f64> {
    let (gate, up) = group.split_at(GATE_COLUMNS);
    let both = gate.iter().zip(up);
    both.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
}
