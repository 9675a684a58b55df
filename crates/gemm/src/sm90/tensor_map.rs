//! Tensor maps: what TMA knows of a matrix.

use std::ffi::c_void;

use cudarc::driver::sys;
use warpweave_symm_mem::{DType, DevicePtr};

/// The driver's description of a matrix and of the boxes in which it is loaded or stored, with the swizzle of 128 bytes.
/// Kernels take it by value.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);
const _: () = assert!(size_of::<TensorMap>() == 128 && align_of::<TensorMap>() == 128);

/// A matrix of 16-bit elements, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// The first element.
    pub address: DevicePtr,
    /// Type of the elements: f16 or bf16.
    pub dtype: DType,
    /// Stored rows.
    pub rows: usize,
    /// Elements of a stored row.
    pub columns: usize,
    /// Elements from one stored row to the next, a multiple of 8.
    pub ld: usize,
}

/// Elements of a row of a box: what the swizzle of 128 bytes allows.
pub(super) const BOX_COLUMNS: u32 = 64;

impl TensorMap {
    /// In the place of a map that no kernel reads.
    pub const UNUSED: Self = Self(sys::CUtensorMap { opaque: [0; 16] });

    /// The map of `matrix` in boxes of `box_rows` (1 to 256) rows of [`BOX_COLUMNS`] elements. Loads beyond the matrix give
    /// zeros.
    ///
    /// The driver must have `cuTensorMapEncodeTiled`, as every driver that has loaded code for `sm_90a` does.
    ///
    /// # Errors
    /// The driver's answer, as text.
    pub fn encode(matrix: Matrix, box_rows: u32) -> Result<Self, String> {
        Self::encode_dimensions(
            matrix,
            [matrix.columns, matrix.rows],
            [matrix.ld],
            [BOX_COLUMNS, box_rows],
        )
    }

    /// The map of `count` matrices like `matrix`, each `stride` elements (a multiple of 8) behind the one before, in boxes of
    /// `box_rows` rows of `box_count` (1 to 256) of them.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_stack(
        matrix: Matrix,
        (count, stride): (usize, usize),
        (box_rows, box_count): (u32, u32),
    ) -> Result<Self, String> {
        Self::encode_dimensions(
            matrix,
            [matrix.columns, matrix.rows, count],
            [matrix.ld, stride],
            [BOX_COLUMNS, box_rows, box_count],
        )
    }

    /// From the address and the type of `matrix`, with extents, strides (of all dimensions but the first) and box in elements.
    fn encode_dimensions<const DIMENSIONS: usize, const STRIDES: usize>(
        matrix: Matrix,
        extents: [usize; DIMENSIONS],
        strides: [usize; STRIDES],
        boxes: [u32; DIMENSIONS],
    ) -> Result<Self, String> {
        const { assert!(STRIDES + 1 == DIMENSIONS) };
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let dtype = match matrix.dtype {
            DType::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        };
        let extents = extents.map(|extent| extent as u64);
        let strides = strides.map(|stride| (stride * matrix.dtype.size()) as u64);
        // SAFETY: the map is valid for a write, and the arrays have an element for each dimension, the strides one less;
        // encoding reads no device memory.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                DIMENSIONS as u32,
                matrix.address.0 as *mut c_void,
                extents.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                [1; DIMENSIONS].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        match result {
            sys::CUresult::CUDA_SUCCESS => Ok(Self(map)),
            failed => Err(format!(
                "cuTensorMapEncodeTiled answers {failed:?} for {matrix:?}, extents {extents:?}, strides of {strides:?} bytes, boxes of {boxes:?}"
            )),
        }
    }
}
