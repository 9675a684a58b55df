//! Element types in CPU memory, for all host references.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::dtype::DType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// An element type in CPU memory: exact widening to f32, and one rounding back.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The element type's name at run time.
    const DTYPE: DType;

    /// Widens `from` into `to`, exactly. The slices have the same length.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds `from` into `to`, to nearest even. The slices have the same length.
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
