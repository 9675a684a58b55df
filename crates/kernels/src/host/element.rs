//! Element types as the CPU holds them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// An element type: exact widening to f32, and one rounding back.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// Widens `from` into `to`, of the same length.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds `from` into `to`, of the same length, to nearest even.
    fn round(from: &[f32], to: &mut [Self]);
}

impl Element for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Element for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Element for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

/// Calls a function that is generic over the element type with the type that `dtype` names.
macro_rules! with_element {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            warpweave_symm_mem::DType::F32 => Ok($function::<f32>($($argument),*)),
            warpweave_symm_mem::DType::F16 => Ok($function::<half::f16>($($argument),*)),
            warpweave_symm_mem::DType::Bf16 => Ok($function::<half::bf16>($($argument),*)),
            other => Err(warpweave_symm_mem::Error::Unavailable {
                what: format!("element type {other}"),
                why: "the kernels know f32, f16 and bf16".into(),
            }),
        }
    };
}
pub(crate) use with_element;
