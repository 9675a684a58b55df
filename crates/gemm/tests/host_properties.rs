//! The blocked GEMM and the reference of the host against a triple loop written out: any shape, layout, type,
//! leading dimension, bias and batch.

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::Config;
use warpweave_gemm::host::{Element, multiply_with_bias, reference_with_bias};
use warpweave_gemm::{GemmBatch, GemmProblem, Layout};
use warpweave_symm_mem::DType;

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
