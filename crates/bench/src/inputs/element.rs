//! Element types: how each is stored, and what PyTorch calls it. Elsewhere only the rates of a machine
//! differ by them.

use half::{bf16, f16};
use warpweave_symm_mem::DType;

/// Each value rounded once to the element type, as it is stored.
pub(crate) fn encode(dtype: DType, values: &[f32], out: &mut [u8]) {
    fn put<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
        for (value, out) in values.iter().zip(out.chunks_exact_mut(N)) {
            out.copy_from_slice(&bytes(*value));
        }
    }
    match dtype {
        DType::F16 => put(values, out, |v| f16::from_f32(v).to_ne_bytes()),
        DType::Bf16 => put(values, out, |v| bf16::from_f32(v).to_ne_bytes()),
        DType::F32 => put(values, out, f32::to_ne_bytes),
    }
}

/// One element; not a number if these are not its bytes.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f32(),
        (DType::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
        (DType::F32, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
        (DType::F16 | DType::Bf16 | DType::F32, _) => f32::NAN,
    }
}

/// To nearest even, once.
pub(crate) fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        DType::F32 => value,
    }
}

/// The integer up to which all are elements: 2 to the number of digits.
pub(crate) fn largest_exact(dtype: DType) -> usize {
    (2.0 / dtype.epsilon()) as usize
}

/// PyTorch's name of the type.
pub(crate) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
    }
}
