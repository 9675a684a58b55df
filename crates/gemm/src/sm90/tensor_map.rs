//! Tensor maps: what TMA knows of a matrix.

use std::ffi::c_void;

use cudarc::driver::sys::CUresult;
use warpweave_symm_mem::cuda::DriverFunction;
use warpweave_symm_mem::{DType, DevicePtr};

use super::config::SWIZZLED_ROW;

/// The driver's description of a matrix and of the boxes in which it is loaded or stored. Kernels take it by
/// value, as `TensorMap` in `warpweave/tma.cuh`.
///
/// Not of the bindings, whose alignment is 64 bytes for CUDA 12 and 128 for CUDA 13; the driver takes either.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct TensorMap([u64; 16]);

/// `cuTensorMapEncodeTiled`, with enumerations as the integers that they are in C.
type Encode = unsafe extern "C" fn(
    map: *mut TensorMap,
    data_type: u32,
    dimensions: u32,
    address: *mut c_void,
    extents: *const u64,
    strides: *const u64,
    boxes: *const u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    fill: u32,
) -> CUresult;
// SAFETY: the signature in `cuda.h`.
static ENCODE: DriverFunction<Encode> =
    unsafe { DriverFunction::new(c"cuTensorMapEncodeTiled", "12.0") };

// Values of `CUtensorMapDataType`, `CUtensorMapInterleave`, `CUtensorMapSwizzle`, `CUtensorMapL2promotion`
// and `CUtensorMapFloatOOBfill`.
const UINT8: u32 = 0;
const UINT64: u32 = 4;
const FLOAT16: u32 = 6;
const FLOAT32: u32 = 7;
const BFLOAT16: u32 = 9;
const INTERLEAVE_NONE: u32 = 0;
const SWIZZLE_NONE: u32 = 0;
const SWIZZLE_128B: u32 = 3;
const L2_PROMOTION_256B: u32 = 3;
const FILL_ZEROS: u32 = 0;

/// Why there is no map.
#[derive(Debug)]
pub(super) enum NoMap {
    /// The driver makes none of this matrix: its answer, as text.
    Refused(String),
    /// The driver makes none at all.
    Unavailable(warpweave_symm_mem::Error),
}

/// A matrix, row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// The first element.
    pub address: DevicePtr,
    /// Type of the elements: f16, bf16 or e4m3.
    pub dtype: DType,
    /// Stored rows.
    pub rows: usize,
    /// Elements of a stored row.
    pub columns: usize,
    /// Elements from one stored row to the next, whole 16 bytes.
    pub ld: usize,
}

/// Bytes of an element of a map of plain bytes: `kBoxUnit` in `cuda/sm90/all_gather.cu`.
const BYTES_UNIT: usize = 8;

/// Elements of 16 bits in a row of a box: what the swizzle of 128 bytes allows.
pub(super) const BOX_COLUMNS: u32 = columns_of_box(DType::Bf16);

/// Elements of a row of a box.
const fn columns_of_box(dtype: DType) -> u32 {
    (SWIZZLED_ROW / dtype.size()) as u32
}

impl TensorMap {
    /// In the place of a map that no kernel reads.
    pub const UNUSED: Self = Self([0; 16]);

    /// The map of `matrix` in boxes of `box_rows` (1 to 256) rows of 128 bytes, with their swizzle. Loads
    /// beyond the matrix give zeros.
    ///
    /// # Errors
    /// [`NoMap`].
    pub fn encode(matrix: Matrix, box_rows: u32) -> Result<Self, NoMap> {
        Self::encode_dimensions(
            matrix,
            [matrix.columns, matrix.rows],
            [matrix.ld],
            [columns_of_box(matrix.dtype), box_rows],
        )
    }

    /// The map of `count` matrices like `matrix`, each `stride` elements (a multiple of 8) after the one
    /// before, in boxes of `box_rows` rows of `box_count` (1 to 256) of them.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_stack(
        matrix: Matrix,
        (count, stride): (usize, usize),
        (box_rows, box_count): (u32, u32),
    ) -> Result<Self, NoMap> {
        Self::encode_dimensions(
            matrix,
            [matrix.columns, matrix.rows, count],
            [matrix.ld, stride],
            [columns_of_box(matrix.dtype), box_rows, box_count],
        )
    }

    /// The map of `rows` rows of `bytes` bytes each, `stride` bytes apart, as plain bytes, in boxes of
    /// `box_bytes` (16 to 2048) of `box_rows` (1 to 256) rows without swizzle. Bytes and strides are
    /// multiples of 16. What lies beyond the rows is loaded as zeros and not stored.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_bytes(
        address: DevicePtr,
        [bytes, rows]: [usize; 2],
        stride: usize,
        [box_bytes, box_rows]: [usize; 2],
    ) -> Result<Self, NoMap> {
        Self::encode_boxes(
            (UINT64, SWIZZLE_NONE),
            address,
            [bytes / BYTES_UNIT, rows].map(|extent| extent as u64),
            [stride as u64],
            [box_bytes / BYTES_UNIT, box_rows].map(|extent| extent as u32),
        )
    }

    /// From the address and the type of `matrix`, with extents, strides (of all dimensions but the first) and
    /// box in elements.
    fn encode_dimensions<const DIMENSIONS: usize, const STRIDES: usize>(
        matrix: Matrix,
        extents: [usize; DIMENSIONS],
        strides: [usize; STRIDES],
        boxes: [u32; DIMENSIONS],
    ) -> Result<Self, NoMap> {
        let data_type = match matrix.dtype {
            DType::Bf16 => BFLOAT16,
            DType::F16 => FLOAT16,
            DType::F32 => FLOAT32,
            DType::E4m3 => UINT8,
        };
        Self::encode_boxes(
            (data_type, SWIZZLE_128B),
            matrix.address,
            extents.map(|extent| extent as u64),
            strides.map(|stride| (stride * matrix.dtype.size()) as u64),
            boxes,
        )
    }

    /// With extents and box in elements and strides in bytes.
    fn encode_boxes<const DIMENSIONS: usize, const STRIDES: usize>(
        (data_type, swizzle): (u32, u32),
        address: DevicePtr,
        extents: [u64; DIMENSIONS],
        strides: [u64; STRIDES],
        boxes: [u32; DIMENSIONS],
    ) -> Result<Self, NoMap> {
        const { assert!(STRIDES + 1 == DIMENSIONS) };
        let encode = ENCODE.get().map_err(NoMap::Unavailable)?;
        let mut map = Self::UNUSED;
        // SAFETY: the map is valid for a write, and the arrays have an element for each dimension, the
        // strides one less; encoding reads no device memory.
        let result = unsafe {
            encode(
                &mut map,
                data_type,
                DIMENSIONS as u32,
                address.0 as *mut c_void,
                extents.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                [1; DIMENSIONS].as_ptr(),
                INTERLEAVE_NONE,
                swizzle,
                L2_PROMOTION_256B,
                FILL_ZEROS,
            )
        };
        match result {
            CUresult::CUDA_SUCCESS => Ok(map),
            failed => Err(NoMap::Refused(format!(
                "cuTensorMapEncodeTiled answers {failed:?} for elements of type {data_type} at \
                 {address:?}, extents {extents:?}, strides of {strides:?} bytes, boxes of {boxes:?}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::*;

    use super::*;

    #[test]
    fn values_are_those_of_the_bindings() {
        use CUtensorMapDataType as Data;
        assert_eq!(size_of::<TensorMap>(), size_of::<CUtensorMap>());
        assert!(align_of::<TensorMap>() >= align_of::<CUtensorMap>());
        let fill = CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE as u32;
        let promotion = CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B as u32;
        let interleave = CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE as u32;
        let swizzle = CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B as u32;
        let plain = CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE as u32;
        assert_eq!((FILL_ZEROS, INTERLEAVE_NONE), (fill, interleave));
        assert_eq!((L2_PROMOTION_256B, SWIZZLE_128B), (promotion, swizzle));
        assert_eq!(SWIZZLE_NONE, plain);
        assert_eq!(UINT64, Data::CU_TENSOR_MAP_DATA_TYPE_UINT64 as u32);
        assert_eq!(UINT8, Data::CU_TENSOR_MAP_DATA_TYPE_UINT8 as u32);
        assert_eq!(FLOAT16, Data::CU_TENSOR_MAP_DATA_TYPE_FLOAT16 as u32);
        assert_eq!(FLOAT32, Data::CU_TENSOR_MAP_DATA_TYPE_FLOAT32 as u32);
        assert_eq!(BFLOAT16, Data::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 as u32);
    }

    #[test]
    fn without_a_driver_there_is_no_map() {
        if warpweave_symm_mem::cuda::is_driver_present() {
            return;
        }
        let matrix = Matrix {
            address: DevicePtr(1 << 20),
            dtype: DType::Bf16,
            rows: 64,
            columns: 64,
            ld: 64,
        };
        match TensorMap::encode(matrix, 64) {
            Err(NoMap::Unavailable(error)) => assert!(error.is_unavailable(), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
