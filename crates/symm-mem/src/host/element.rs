//! Element types in CPU memory, for all host references.

use bytemuck::Pod;
use float8::F8E4M3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::dtype::DType;
use crate::with_element;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for float8::F8E4M3 {}
}

/// An element type in CPU memory: exact widening to f32, and one rounding back.
pub trait Element: sealed::Sealed + Pod + Default + Send + Sync {
    /// The element type's name at run time.
    const DTYPE: DType;

    /// Widens `from` into `to`, exactly. The slices have the same length.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds `from` into `to`, to nearest even; to e4m3 with saturation, as it has no infinities. The slices
    /// have the same length.
    fn round(from: &[f32], to: &mut [Self]);

    /// The exact value.
    fn to_f64(self) -> f64;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Element for F8E4M3 {
    const DTYPE: DType = DType::E4m3;

    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.to_f32();
        }
    }

    fn round(from: &[f32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = F8E4M3::from_f32(*from);
        }
    }

    fn to_f64(self) -> f64 {
        f64::from(self.to_f32())
    }
}

/// Values rounded once to elements of `dtype`, as they lie in memory.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    fn of<T: Element>(values: &[f32]) -> Vec<u8> {
        let mut elements = vec![T::default(); values.len()];
        T::round(values, &mut elements);
        bytemuck::cast_slice(&elements).to_vec()
    }
    with_element!(dtype, T => of::<T>(values))
}

/// The values of elements of `dtype`, as they lie in memory at any address.
///
/// # Panics
/// If these are not the bytes of whole elements.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    fn of<T: Element>(bytes: &[u8]) -> Vec<f32> {
        let mut elements = vec![T::default(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut elements).copy_from_slice(bytes);
        let mut values = vec![0.0; elements.len()];
        T::widen(&elements, &mut values);
        values
    }
    with_element!(dtype, T => of::<T>(bytes))
}

/// A value rounded once to an element of `dtype`.
pub fn rounded(dtype: DType, value: f32) -> f32 {
    fn of<T: Element>(value: f32) -> f32 {
        let (mut element, mut rounded) = ([T::default()], [0.0]);
        T::round(&[value], &mut element);
        T::widen(&element, &mut rounded);
        rounded[0]
    }
    with_element!(dtype, T => of::<T>(value))
}

#[cfg(test)]
mod tests {
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

    fn e4m3(value: f32) -> u8 {
        let mut rounded = [F8E4M3::ZERO];
        F8E4M3::round(&[value], &mut rounded);
        rounded[0].to_bits()
    }

    #[test]
    fn e4m3_is_the_nearest_with_ties_to_even() {
        // All encodings but the NaN, by value.
        let finite: Vec<u8> = (0..0x7f).collect();
        for &bits in &finite {
            let value = decoded(bits) as f32;
            assert_eq!(e4m3(value), bits);
            assert_eq!(e4m3(-value), bits | 0x80);
            assert_eq!(F8E4M3::from_bits(bits).to_f64(), decoded(bits));
            assert_eq!(
                F8E4M3::from_bits(bits | 0x80).to_f64(),
                decoded(bits | 0x80)
            );
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
        assert!(
            F8E4M3::from_bits(0x7f).to_f64().is_nan() && F8E4M3::from_bits(0xff).to_f64().is_nan()
        );
        assert_eq!((e4m3(f32::from_bits(1)), e4m3(-0.0)), (0, 0x80));
    }
}
