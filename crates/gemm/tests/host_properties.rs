//! The blocked GEMM and the reference of the host against a triple loop written out: any shape, layout, type,
//! leading dimension, bias and batch.

use std::ops::Range;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::Config;
use warpweave_gemm::host::{Element, multiply_with_bias, reference_with_bias};
use warpweave_gemm::{GemmBatch, GemmProblem, Layout};
use warpweave_symm_mem::DType;

/// Reals of size one at most, whose sums depend on their order.
fn reals<T: Element>(len: usize, seed: u32) -> Vec<T> {
    let mut state = seed;
    let wide: Vec<f32> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

/// A problem, and a box of its C.
#[derive(Clone, Debug)]
struct Part {
    problem: GemmProblem,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Sums that are long enough to be blocked, some rows and columns of them: one row, what a panel has, more.
fn part(dtype: DType, out: DType) -> impl Strategy<Value = Part> {
    let m = prop_oneof![2 => 1..20usize, 1 => 120..300usize];
    let n = prop_oneof![4 => 1..40usize, 1 => 505..530usize];
    let k = prop_oneof![2 => 1..40usize, 2 => 200..700usize];
    let places = prop::array::uniform4(any::<prop::sample::Index>());
    let shape = (m, n, k, any::<bool>(), any::<bool>());
    (shape, places).prop_map(move |((m, n, k, is_one, bias), places)| {
        let range = |most: usize, from: usize, count: usize| {
            let start = places[from].index(most);
            start..start + 1 + places[count].index(most - start)
        };
        let rows = range(m, 0, 1);
        let problem = GemmProblem::new(m, n, k, dtype).with_output(out);
        Part {
            problem: GemmProblem { bias, ..problem },
            rows: match is_one {
                true => rows.start..rows.start + 1,
                false => rows,
            },
            columns: range(n, 2, 3),
        }
    })
}

/// The part alone has the bits that it has in the whole, with B stored either way.
fn same_bits<T: Element, O: Element>(part: &Part, seed: u32) -> Result<(), TestCaseError> {
    let Part {
        problem: p,
        rows,
        columns,
    } = part;
    let (a, b) = (reals::<T>(p.a_len(), seed), reals::<T>(p.b_len(), seed ^ 1));
    let bias = reals::<O>(p.bias_len(), seed ^ 2);
    let mut whole = vec![O::default(); p.c_len()];
    multiply_with_bias(p, &a, &b, &bias, &mut whole).unwrap();

    let transposed: Vec<T> = columns
        .clone()
        .flat_map(|j| (0..p.k).map(move |l| (l, j)))
        .map(|(l, j)| b[l * p.n + j])
        .collect();
    let a = &a[rows.start * p.k..rows.end * p.k];
    let bias = &bias[if p.bias { columns.clone() } else { 0..0 }];
    let (m, n) = (rows.len(), columns.len());
    for (layout, ldb, b) in [
        (Layout::RowMajor, p.n, &b[columns.start..]),
        (Layout::Transposed, p.k, &transposed[..]),
    ] {
        let alone = GemmProblem::new(m, n, p.k, p.dtype)
            .with_output(p.out)
            .with_layouts(Layout::RowMajor, layout)
            .with_leading_dimensions(p.k, ldb, n);
        let alone = GemmProblem {
            bias: p.bias,
            ..alone
        };
        let mut c = vec![O::default(); m * n];
        multiply_with_bias(&alone, a, b, bias, &mut c).unwrap();
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let got = c[i * n + j].to_f64();
            let wanted = whole[(rows.start + i) * p.n + columns.start + j].to_f64();
            prop_assert_eq!(
                got.to_bits(),
                wanted.to_bits(),
                "({}, {}) of {}",
                i,
                j,
                alone
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 96, failure_persistence: None, ..Config::default() })]

    #[test]
    fn rows_of_f16_have_their_bits_in_any_box(part in part(DType::F16, DType::F16), seed: u32) {
        same_bits::<f16, f16>(&part, seed)?;
    }

    #[test]
    fn rows_of_bf16_stored_as_f32_have_their_bits_in_any_box(
        part in part(DType::Bf16, DType::F32),
        seed: u32,
    ) {
        same_bits::<bf16, f32>(&part, seed)?;
    }

    #[test]
    fn rows_of_bf16_have_their_bits_in_any_box(part in part(DType::Bf16, DType::Bf16), seed: u32) {
        same_bits::<bf16, bf16>(&part, seed)?;
    }

    #[test]
    fn rows_of_f32_have_their_bits_in_any_box(part in part(DType::F32, DType::F32), seed: u32) {
        same_bits::<f32, f32>(&part, seed)?;
    }
}

/// A value that no sum of the tests reaches, and that every type holds.
const POISON: f32 = -16384.0;

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::RowMajor), Just(Layout::Transposed)]
}

/// Mostly small, sometimes beyond a panel of rows (128) or of columns (512); strides may share A and B, or
/// overlap them.
fn problem(dtype: DType, out: DType) -> impl Strategy<Value = GemmProblem> {
    let m = prop_oneof![4 => 1..9usize, 1 => 120..140usize];
    let n = prop_oneof![4 => 1..9usize, 1 => 505..520usize];
    let paddings = (0..4usize, 0..4usize, 0..4usize);
    let strides = (0..40usize, 0..40usize, 0..9usize);
    let shape = (m, n, 1..20usize, layout(), layout());
    (shape, paddings, 1..4usize, strides, any::<bool>()).prop_map(
        move |((m, n, k, a, b), (pa, pb, pc), count, (a_stride, b_stride, gap), bias)| {
            let tight = GemmProblem::new(m, n, k, dtype)
                .with_output(out)
                .with_layouts(a, b);
            let one = tight.with_leading_dimensions(tight.lda + pa, tight.ldb + pb, tight.ldc + pc);
            let batched = one.with_batch(GemmBatch {
                count,
                a_stride,
                b_stride,
                c_stride: one.c_len() + gap,
            });
            GemmProblem { bias, ..batched }
        },
    )
}

/// Integers of size 3 at most: every sum is exact, and whole in f16 and f32; in bf16 up to 2⁸, which 19·9 + 3
/// is below.
fn integers<T: Element>(len: usize, seed: u32) -> Vec<T> {
    let mut state = seed;
    let wide: Vec<f32> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) % 7) as f32 - 3.0
        })
        .collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

fn compare<T: Element, O: Element>(p: &GemmProblem, seed: u32) -> Result<(), TestCaseError> {
    let a = integers::<T>(p.a_len(), seed);
    let b = integers::<T>(p.b_len(), seed ^ 1);
    let bias = integers::<O>(p.bias_len(), seed ^ 2);
    let mut poison = [O::default()];
    O::round(&[POISON], &mut poison);

    // Every element that no GEMM owns must stay as it was.
    let mut expected = vec![f64::from(POISON); p.c_len()];
    let mut exact = Vec::new();
    let at = |layout, ld: usize, i: usize, j: usize| match layout {
        Layout::RowMajor => i * ld + j,
        Layout::Transposed => j * ld + i,
    };
    for gemm in 0..p.batch.count {
        for i in 0..p.m {
            for j in 0..p.n {
                let mut sum = if p.bias { bias[j].to_f64() } else { 0.0 };
                for l in 0..p.k {
                    let x = a[gemm * p.batch.a_stride + at(p.a_layout, p.lda, i, l)];
                    let y = b[gemm * p.batch.b_stride + at(p.b_layout, p.ldb, l, j)];
                    sum += x.to_f64() * y.to_f64();
                }
                expected[gemm * p.batch.c_stride + i * p.ldc + j] = sum;
                exact.push(sum);
            }
        }
    }

    let mut c = vec![poison[0]; p.c_len()];
    multiply_with_bias(p, &a, &b, &bias, &mut c).unwrap();
    let c: Vec<f64> = c.into_iter().map(O::to_f64).collect();
    prop_assert_eq!(c, expected, "{}", p);
    prop_assert_eq!(reference_with_bias(p, &a, &b, &bias).unwrap(), exact);
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 96, failure_persistence: None, ..Config::default() })]

    #[test]
    fn f16_gemms(p in problem(DType::F16, DType::F16), seed: u32) {
        compare::<f16, f16>(&p, seed)?;
    }

    #[test]
    fn f16_gemms_stored_as_f32(p in problem(DType::F16, DType::F32), seed: u32) {
        compare::<f16, f32>(&p, seed)?;
    }

    #[test]
    fn bf16_gemms(p in problem(DType::Bf16, DType::Bf16), seed: u32) {
        compare::<bf16, bf16>(&p, seed)?;
    }

    #[test]
    fn bf16_gemms_stored_as_f32(p in problem(DType::Bf16, DType::F32), seed: u32) {
        compare::<bf16, f32>(&p, seed)?;
    }

    #[test]
    fn f32_gemms(p in problem(DType::F32, DType::F32), seed: u32) {
        compare::<f32, f32>(&p, seed)?;
    }
}

#[test]
fn a_bias_is_added_before_the_one_rounding() {
    // 2048 + 1 is no f16, and rounds to 2048: a bias of 1 added after that would be lost again.
    let p = GemmProblem::new(1, 1, 2, DType::F16).with_bias();
    let a = [f16::from_f32(2048.0), f16::ONE];
    let b = [f16::ONE, f16::ONE];
    let mut c = [f16::ZERO];
    multiply_with_bias(&p, &a, &b, &[f16::ONE], &mut c).unwrap();
    assert_eq!(c[0].to_f32(), 2050.0);
}
