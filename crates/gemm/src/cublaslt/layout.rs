//! Layouts: where cuBLASLt finds the elements of one matrix, or of a batch of them.

use warpweave_symm_mem::DType;

use super::header as sys;
use super::library::Library;
use crate::Error;

/// A stored row-major matrix is a column-major one with as many columns as stored rows.
pub(super) fn layout(
    library: &Library,
    data_type: u32,
    (stored_rows, stored_cols): (usize, usize),
    ld: usize,
) -> Result<sys::cublasLtMatrixLayout_t, Error> {
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` is a place for one layout.
    let status = unsafe {
        (library.functions.layout_create)(
            &mut raw,
            data_type,
            stored_cols as u64,
            stored_rows as u64,
            ld as i64,
        )
    };
    library.check("cublasLtMatrixLayoutCreate", status)?;
    Ok(raw)
}

/// Makes a layout that of `count` matrices, `stride` elements apart.
pub(super) fn set_batch(
    library: &Library,
    layout: sys::cublasLtMatrixLayout_t,
    count: usize,
    stride: usize,
) -> Result<(), Error> {
    let (count, stride) = (count as i32, stride as i64);
    // SAFETY: the layout lives; `cublasLt.h` gives the attributes these types.
    let status = unsafe {
        (library.functions.layout_set)(
            layout,
            sys::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
            (&raw const count).cast(),
            size_of::<i32>(),
        )
    };
    library.check("cublasLtMatrixLayoutSetAttribute", status)?;
    // SAFETY: as above.
    let status = unsafe {
        (library.functions.layout_set)(
            layout,
            sys::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
            (&raw const stride).cast(),
            size_of::<i64>(),
        )
    };
    library.check("cublasLtMatrixLayoutSetAttribute", status)
}

/// cuBLASLt's name of an element type.
pub(super) fn data_type(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => sys::CUDA_R_16F,
        DType::Bf16 => sys::CUDA_R_16BF,
        DType::F32 => sys::CUDA_R_32F,
        DType::E4m3 => sys::CUDA_R_8F_E4M3,
    }
}
