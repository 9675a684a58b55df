//! NCCL's element types and reductions.

use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};
use warpweave_symm_mem::DType;

use crate::error::{CommError, Result};

/// What a collective's buffers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// Unsigned bytes.
    U8,
    /// Signed 32-bit integers.
    I32,
    /// Unsigned 32-bit integers.
    U32,
    /// Signed 64-bit integers.
    I64,
    /// Unsigned 64-bit integers.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Element {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    pub(super) fn code(self) -> i32 {
        let code = match self {
            Element::U8 => ncclDataType_t::ncclUint8,
            Element::I32 => ncclDataType_t::ncclInt32,
            Element::U32 => ncclDataType_t::ncclUint32,
            Element::I64 => ncclDataType_t::ncclInt64,
            Element::U64 => ncclDataType_t::ncclUint64,
            Element::F16 => ncclDataType_t::ncclFloat16,
            Element::Bf16 => ncclDataType_t::ncclBfloat16,
            Element::F32 => ncclDataType_t::ncclFloat32,
            Element::F64 => ncclDataType_t::ncclFloat64,
        };
        code as i32
    }
}

impl TryFrom<DType> for Element {
    type Error = CommError;

    fn try_from(dtype: DType) -> Result<Self> {
        match dtype {
            DType::F32 => Ok(Element::F32),
            DType::F16 => Ok(Element::F16),
            DType::Bf16 => Ok(Element::Bf16),
            other => Err(CommError::InvalidArgument {
                what: "element type",
                why: format!("NCCL has no `{other}`"),
            }),
        }
    }
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The mean over the ranks.
    Avg,
}

impl ReduceOp {
    pub(super) fn code(self) -> i32 {
        let code = match self {
            ReduceOp::Sum => ncclRedOp_t::ncclSum,
            ReduceOp::Prod => ncclRedOp_t::ncclProd,
            ReduceOp::Max => ncclRedOp_t::ncclMax,
            ReduceOp::Min => ncclRedOp_t::ncclMin,
            ReduceOp::Avg => ncclRedOp_t::ncclAvg,
        };
        code as i32
    }
}
