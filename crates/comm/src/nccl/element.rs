//! NCCL's element types and reductions.

use warpweave_symm_mem::DType;

use super::version::{NcclVersion, OLDEST_NCCL};
use crate::error::{CommError, Result};

/// Element type of a collective's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// Signed bytes.
    I8,
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
    /// 8-bit floats with 4 bits of exponent. From 2.24; reductions need compute capability 9.0.
    F8E4M3,
    /// 8-bit floats with 5 bits of exponent. As [`Element::F8E4M3`].
    F8E5M2,
}

impl Element {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Element::I8 | Element::U8 | Element::F8E4M3 | Element::F8E5M2 => 1,
            Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    /// The value of `ncclDataType_t`.
    pub(super) const fn code(self) -> i32 {
        match self {
            Element::I8 => 0,
            Element::U8 => 1,
            Element::I32 => 2,
            Element::U32 => 3,
            Element::I64 => 4,
            Element::U64 => 5,
            Element::F16 => 6,
            Element::F32 => 7,
            Element::F64 => 8,
            Element::Bf16 => 9,
            Element::F8E4M3 => 10,
            Element::F8E5M2 => 11,
        }
    }

    /// The first version that has it.
    pub(super) const fn since(self) -> NcclVersion {
        match self {
            Element::F8E4M3 | Element::F8E5M2 => NcclVersion::of(2, 24),
            _ => OLDEST_NCCL,
        }
    }
}

impl TryFrom<DType> for Element {
    type Error = CommError;

    fn try_from(dtype: DType) -> Result<Self> {
        match dtype {
            DType::F32 => Ok(Element::F32),
            DType::F16 => Ok(Element::F16),
            DType::Bf16 => Ok(Element::Bf16),
            DType::E4m3 => Ok(Element::F8E4M3),
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
    /// The mean over the ranks; of integers, rounded toward zero.
    Avg,
}

impl ReduceOp {
    /// The value of `ncclRedOp_t`.
    pub(super) const fn code(self) -> i32 {
        match self {
            ReduceOp::Sum => 0,
            ReduceOp::Prod => 1,
            ReduceOp::Max => 2,
            ReduceOp::Min => 3,
            ReduceOp::Avg => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use cudarc::nccl::sys::{ncclDataType_t as T, ncclRedOp_t as R};

    use super::*;

    #[test]
    fn codes_are_those_of_the_header() {
        let elements = [
            (Element::I8, T::ncclInt8),
            (Element::U8, T::ncclUint8),
            (Element::I32, T::ncclInt32),
            (Element::U32, T::ncclUint32),
            (Element::I64, T::ncclInt64),
            (Element::U64, T::ncclUint64),
            (Element::F16, T::ncclFloat16),
            (Element::Bf16, T::ncclBfloat16),
            (Element::F32, T::ncclFloat32),
            (Element::F64, T::ncclFloat64),
        ];
        for (ours, theirs) in elements {
            assert_eq!(ours.code(), theirs as i32, "{ours:?}");
        }
        let ops = [
            (ReduceOp::Sum, R::ncclSum),
            (ReduceOp::Prod, R::ncclProd),
            (ReduceOp::Max, R::ncclMax),
            (ReduceOp::Min, R::ncclMin),
            (ReduceOp::Avg, R::ncclAvg),
        ];
        for (ours, theirs) in ops {
            assert_eq!(ours.code(), theirs as i32, "{ours:?}");
        }
    }
}
