//! The types and constants of `cublasLt.h` that this crate uses. All values are alike in CUDA 12 and 13.
//!
//! Not cudarc's bindings: with them comes its feature `cublaslt`, which links the library wherever a project
//! has cudarc link dynamically.

#![allow(non_camel_case_types)]

use std::ffi::c_void;

pub(super) type cublasLtHandle_t = *mut c_void;
pub(super) type cublasLtMatmulDesc_t = *mut c_void;
pub(super) type cublasLtMatrixLayout_t = *mut c_void;
pub(super) type cublasLtMatmulPreference_t = *mut c_void;

/// An algorithm, in cuBLASLt's own coding.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct cublasLtMatmulAlgo_t {
    pub data: [u64; 8],
}

pub(super) const CUBLAS_STATUS_NOT_SUPPORTED: u32 = 15;

// cublasComputeType_t
pub(super) const CUBLAS_COMPUTE_32F: u32 = 68;

// cudaDataType_t
pub(super) const CUDA_R_32F: u32 = 0;
pub(super) const CUDA_R_16F: u32 = 2;
pub(super) const CUDA_R_16BF: u32 = 14;
pub(super) const CUDA_R_8F_E4M3: u32 = 28;

// cublasLtMatmulDescAttributes_t
pub(super) const CUBLASLT_MATMUL_DESC_TRANSA: u32 = 3;
pub(super) const CUBLASLT_MATMUL_DESC_TRANSB: u32 = 4;
pub(super) const CUBLASLT_MATMUL_DESC_EPILOGUE: u32 = 7;
pub(super) const CUBLASLT_MATMUL_DESC_BIAS_POINTER: u32 = 8;
pub(super) const CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: u32 = 17;
pub(super) const CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: u32 = 18;
pub(super) const CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: u32 = 26;
pub(super) const CUBLASLT_MATMUL_DESC_A_SCALE_MODE: u32 = 31;
pub(super) const CUBLASLT_MATMUL_DESC_B_SCALE_MODE: u32 = 32;

// cublasLtMatmulMatrixScale_t, of CUDA 12.9 and later
pub(super) const CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F: u32 = 3;
pub(super) const CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F: u32 = 4;
#[allow(non_upper_case_globals, reason = "NVIDIA's name")]
pub(super) const CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F: u32 = 5;

// cublasLtEpilogue_t
pub(super) const CUBLASLT_EPILOGUE_BIAS: u32 = 4;

// cublasLtMatrixLayoutAttribute_t
pub(super) const CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: u32 = 5;
pub(super) const CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: u32 = 6;

// cublasLtMatmulPreferenceAttributes_t
pub(super) const CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: u32 = 1;
pub(super) const CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: u32 = 3;
pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: u32 = 5;
pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: u32 = 6;
pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: u32 = 7;
pub(super) const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: u32 = 8;

// cublasLtReductionScheme_t
pub(super) const CUBLASLT_REDUCTION_SCHEME_NONE: u32 = 0;
pub(super) const CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: u32 = 2;

#[cfg(test)]
mod tests {
    use cudarc::cublaslt::sys;

    use super::*;

    #[test]
    fn values_are_those_of_the_bindings() {
        use sys::cublasLtMatmulDescAttributes_t as Desc;
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        use sys::cublasLtMatrixLayoutAttribute_t as Layout;
        use sys::cudaDataType_t as Data;
        assert_eq!(
            size_of::<cublasLtMatmulAlgo_t>(),
            size_of::<sys::cublasLtMatmulAlgo_t>()
        );
        macro_rules! same {
            ($($of:path { $($name:ident),* })*) => {$($({
                use $of as Of;
                assert_eq!($name, Of::$name as u32, stringify!($name));
            })*)*};
        }
        same! {
            sys::cublasStatus_t { CUBLAS_STATUS_NOT_SUPPORTED }
            sys::cublasComputeType_t { CUBLAS_COMPUTE_32F }
            Data { CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3 }
            Desc { CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB }
            Desc { CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_BIAS_POINTER }
            Desc { CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER }
            Desc { CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE }
            sys::cublasLtEpilogue_t { CUBLASLT_EPILOGUE_BIAS }
            Layout { CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET }
            Preference {
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
            }
            Preference {
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES
            }
            Preference {
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
            }
            sys::cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_NONE }
            sys::cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE }
        }
    }
}
