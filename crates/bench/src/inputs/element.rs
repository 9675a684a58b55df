//! Element types: their digits, and what PyTorch calls them.

use warpweave_symm_mem::DType;

/// The integer up to which all are elements: 2 to the number of digits.
pub(crate) fn largest_exact(dtype: DType) -> usize {
    (2.0 / dtype.epsilon()) as usize
}

/// PyTorch's name of the type.
pub(crate) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::E4m3 => "float8_e4m3fn",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
    }
}
