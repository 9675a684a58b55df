//! The arithmetic of a row on the host: the twin of `cuda/norm.cuh`, bit by bit. For tests of kernels, and of
//! what calls them.

use float8::F8E4M3;
use warpweave_symm_mem::host::Element;
use warpweave_symm_mem::{DType, with_element};

use crate::collective::launch::PAYLOAD;

/// The largest e4m3. `F8E4M3::MAX` is 416 in float8 0.7.
pub const E4M3_MAX: f32 = 448.0;

/// `x + residual` of a row, rounded to the type of the elements.
pub fn add<T: Element>(x: &[T], residual: &[T]) -> Vec<T> {
    let (mut sums, added) = (widened(x), widened(residual));
    for (sum, added) in sums.iter_mut().zip(added) {
        *sum += added;
    }
    rounded(&sums)
}

/// `r / sqrt(mean of squares + epsilon) * weight` of a row, rounded to the type of the elements.
pub fn normalize<T: Element>(r: &[T], weight: &[T], epsilon: f32) -> Vec<T> {
    let mut values = widened(r);
    let mean = sum_of_squares(&values, PAYLOAD / size_of::<T>()) * (1.0 / values.len() as f32);
    let inverse = 1.0 / (mean + epsilon).sqrt();
    for (value, weight) in values.iter_mut().zip(widened(weight)) {
        *value = *value * inverse * weight;
    }
    rounded(&values)
}

/// [`add`] and [`normalize`] of a row of elements of `dtype`, to which x, the residual and the weight are
/// rounded: the new residual, then the normalized row.
pub fn add_rms_norm(dtype: DType, rows: [&[f32]; 3], epsilon: f32) -> [Vec<f32>; 2] {
    fn of<T: Element>(rows: [&[f32]; 3], epsilon: f32) -> [Vec<f32>; 2] {
        let [x, residual, weight] = rows.map(rounded::<T>);
        let sum = add(&x, &residual);
        let normalized = normalize(&sum, &weight, epsilon);
        [sum, normalized].map(|row| widened(&row))
    }
    with_element!(dtype, T => of::<T>(rows, epsilon))
}

/// A row as e4m3, with its scale: an element is its e4m3 times that.
pub fn quantize<T: Element>(y: &[T]) -> (Vec<F8E4M3>, f32) {
    let values = widened(y);
    let peak = values
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let scale = (peak / E4M3_MAX).max(f32::MIN_POSITIVE);
    let inverse = 1.0 / scale;
    let quotients: Vec<f32> = values.iter().map(|value| value * inverse).collect();
    (rounded(&quotients), scale)
}

/// In the order that `norm.cuh` gives; `payload` is elements.
fn sum_of_squares(values: &[f32], payload: usize) -> f32 {
    let of_payload = |some: &[f32]| some.iter().fold(0.0f32, |sum, v| v.mul_add(*v, sum));
    let mut sums: Vec<f32> = values.chunks(payload).map(of_payload).collect();
    // A level of the tree at a time. What lacks a neighbour would be added to zero.
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    sums.first().copied().unwrap_or_default()
}

fn widened<T: Element>(values: &[T]) -> Vec<f32> {
    let mut wide = vec![0.0; values.len()];
    T::widen(values, &mut wide);
    wide
}

fn rounded<T: Element>(values: &[f32]) -> Vec<T> {
    let mut all = vec![T::default(); values.len()];
    T::round(values, &mut all);
    all
}

#[cfg(all(test, not(loom)))]
mod tests {
    use half::{bf16, f16};

    use super::*;

    /// Against f64, with a bound from the roundings of the arithmetic.
    fn close_to_exact<T: Element>(hidden: usize) {
        let value = |seed: usize| {
            let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            mixed as f32 / (1 << 22) as f32 - 2.0
        };
        let row = |start: usize| -> Vec<T> {
            let values: Vec<f32> = (0..hidden).map(|j| value(start + j)).collect();
            rounded(&values)
        };
        let (x, residual, weight) = (row(0), row(hidden), row(2 * hidden));
        let epsilon = 1e-5f32;
        let r = add(&x, &residual);
        for ((x, residual), r) in x.iter().zip(&residual).zip(&r) {
            let exact = x.to_f64() + residual.to_f64();
            let rounding = T::DTYPE.epsilon() / 2.0 + f64::from(f32::EPSILON);
            assert!((r.to_f64() - exact).abs() <= exact.abs() * rounding);
        }
        let squares: f64 = r.iter().map(|r| r.to_f64() * r.to_f64()).sum();
        let inverse = 1.0 / (squares / hidden as f64 + f64::from(epsilon)).sqrt();
        let y = normalize(&r, &weight, epsilon);
        let payloads = (hidden * size_of::<T>()).div_ceil(PAYLOAD);
        let depth = (PAYLOAD / size_of::<T>()) as f64 + (payloads as f64).log2().ceil();
        let f32_roundings = (depth / 2.0 + 6.0) * f64::from(f32::EPSILON);
        for ((r, weight), y) in r.iter().zip(&weight).zip(&y) {
            let exact = r.to_f64() * inverse * weight.to_f64();
            let bound = exact.abs() * (T::DTYPE.epsilon() / 2.0 + f32_roundings) + 1e-7;
            assert!((y.to_f64() - exact).abs() <= bound, "{exact}");
        }
        let (quantized, scale) = quantize(&y);
        for (y, q) in y.iter().zip(&quantized) {
            let exact = y.to_f64();
            let step = (exact.abs() / 16.0).max(f64::from(scale) * 2f64.powi(-10));
            let back = q.to_f64() * f64::from(scale);
            assert!(
                (back - exact).abs() <= step * (1.0 + 1e-6),
                "{exact} {back}"
            );
        }
    }

    #[test]
    fn rows_are_close_to_exact_arithmetic() {
        for hidden in [1, 8, 100, 4096, 8192 + 24] {
            close_to_exact::<f32>(hidden);
            close_to_exact::<f16>(hidden);
            close_to_exact::<bf16>(hidden);
        }
    }

    #[test]
    fn the_largest_element_becomes_the_largest_e4m3() {
        let bits = |y: &[f32]| {
            let (quantized, scale) = quantize(y);
            (Vec::from_iter(quantized.iter().map(F8E4M3::to_bits)), scale)
        };
        let (quantized, scale) = bits(&[0.5, -2.0, 1.0]);
        assert_eq!((quantized[1], scale), (0xfe, 2.0 / 448.0));
        assert_eq!(bits(&[0.0, -0.0]), (vec![0, 0x80], f32::MIN_POSITIVE));
        let (quantized, scale) = bits(&[f32::NAN, 448.0]);
        assert_eq!(
            (quantized[0] & 0x7f, quantized[1], scale),
            (0x7f, 0x7e, 1.0)
        );
    }
}
