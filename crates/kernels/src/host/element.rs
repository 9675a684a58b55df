//! Element types, from their names at run time.

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
