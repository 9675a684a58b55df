//! Element types, from their names at run time.

/// Calls a function that is generic over the element type with the type that `dtype` names.
macro_rules! with_element {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            warpweave_symm_mem::DType::F32 => Ok($function::<f32>($($argument),*)),
            warpweave_symm_mem::DType::F16 => Ok($function::<half::f16>($($argument),*)),
            warpweave_symm_mem::DType::Bf16 => Ok($function::<half::bf16>($($argument),*)),
        }
    };
}
pub(crate) use with_element;
