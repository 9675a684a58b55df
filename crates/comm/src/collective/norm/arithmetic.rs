//! The arithmetic of a row on the host: the twin of `cuda/norm.cuh`, bit by bit. For tests of kernels, and of
//! what calls them.

use warpweave_symm_mem::host::Element;
use warpweave_symm_mem::{DType, with_element};

use super::launch::{SEGMENT, UNIT};

/// The largest e4m3.
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
    let mean = sum_of_squares(&values, UNIT / size_of::<T>()) / values.len() as f32;
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
pub fn quantize<T: Element>(y: &[T]) -> (Vec<u8>, f32) {
    let values = widened(y);
    let peak = values
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let scale = (peak / E4M3_MAX).max(f32::MIN_POSITIVE);
    let inverse = 1.0 / scale;
    let quantized = values.iter().map(|value| e4m3(value * inverse)).collect();
    (quantized, scale)
}

/// In the order that `norm.cuh` gives; `unit` is elements.
fn sum_of_squares(values: &[f32], unit: usize) -> f32 {
    let of_unit = |unit: &[f32]| unit.iter().fold(0.0f32, |sum, v| v.mul_add(*v, sum));
    let of_segment = |segment: &[f32]| {
        let mut lanes = [0.0f32; SEGMENT];
        for (lane, unit) in lanes.iter_mut().zip(segment.chunks(unit)) {
            *lane = of_unit(unit);
        }
        let mut count = SEGMENT / 2;
        while count > 0 {
            for lane in 0..count {
                lanes[lane] += lanes[lane + count];
            }
            count /= 2;
        }
        lanes[0]
    };
    values
        .chunks(SEGMENT * unit)
        .fold(0.0, |sum, segment| sum + of_segment(segment))
}

/// The nearest e4m3, ties to even; beyond the largest that, with the sign. Of a NaN 0x7f.
pub fn e4m3(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    // Exact, so that one rounding follows: three bits of fraction, fewer below 2⁻⁶.
    let magnitude = f64::from(value.abs().min(E4M3_MAX));
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let ulp = f64::powi(2.0, exponent.max(-6) - 3);
    let steps = (magnitude / ulp).round_ties_even() as u8;
    // A number whose fraction rounds up to 16 eighths has the encoding of the next exponent.
    let exponent = (exponent.max(-6) + 6) as u8;
    sign | ((exponent << 3) + steps)
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

    /// The value of an encoding, by its definition.
    fn decoded(bits: u8) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
        let magnitude = match exponent {
            0 => fraction / 8.0 * 2f64.powi(-6),
            _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
        };
        if bits & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    #[test]
    fn e4m3_is_the_nearest_with_ties_to_even() {
        // All encodings but the NaN, by value.
        let finite: Vec<u8> = (0..0x7f).collect();
        for &bits in &finite {
            let value = decoded(bits) as f32;
            assert_eq!(e4m3(value), bits);
            assert_eq!(e4m3(-value), bits | 0x80);
        }
        for pair in finite.windows(2) {
            let half = ((decoded(pair[0]) + decoded(pair[1])) / 2.0) as f32;
            let even = if pair[0] % 2 == 0 { pair[0] } else { pair[1] };
            assert_eq!(e4m3(half), even, "{half}");
            assert_eq!(e4m3(half.next_down()), pair[0]);
            assert_eq!(e4m3(half.next_up()), pair[1]);
        }
        for beyond in [449.0, 464.0, 465.0, 1e30, f32::INFINITY] {
            assert_eq!((e4m3(beyond), e4m3(-beyond)), (0x7e, 0xfe));
        }
        assert_eq!(e4m3(f32::NAN) & 0x7f, 0x7f);
        assert_eq!((e4m3(f32::from_bits(1)), e4m3(-0.0)), (0, 0x80));
    }

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
        let depth = (UNIT / size_of::<T>() + 5 + hidden.div_ceil(SEGMENT * 12)) as f64;
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
            let back = decoded(*q) * f64::from(scale);
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
        let (quantized, scale) = quantize(&[0.5f32, -2.0, 1.0]);
        assert_eq!(scale, 2.0 / 448.0);
        assert_eq!(quantized[1], 0xfe);
        let (quantized, scale) = quantize(&[0.0f32, -0.0]);
        assert_eq!((quantized, scale), (vec![0, 0x80], f32::MIN_POSITIVE));
        let (quantized, scale) = quantize(&[f32::NAN, 448.0]);
        assert_eq!(
            (quantized[0] & 0x7f, quantized[1], scale),
            (0x7f, 0x7e, 1.0)
        );
    }
}
