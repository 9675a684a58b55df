//! Parameters of the kernels of `cuda/norm.cu`: twins of its structures.

use warpweave_symm_mem::{DType, DevicePtr};

use crate::collective::launch::Packets;

/// Bytes of a unit of a row, which one thread computes: `kUnitBytes`.
pub(crate) const UNIT: usize = 48;

/// Packets of a unit: `kUnitPackets`.
pub(crate) const UNIT_PACKETS: usize = 4;

/// Units of a segment of a row, which one warp computes.
pub(crate) const SEGMENT: usize = 32;

/// Most segments of a row: `kMaxSegments`.
pub(crate) const MAX_SEGMENTS: usize = 128;

/// Most threads of a block: `kNormThreads`.
pub(crate) const NORM_THREADS: usize = 256;
/// The same of a block that computes without packets: `kLocalThreads`.
pub(crate) const LOCAL_THREADS: usize = 512;

/// Parameter of `add_rms_norm_*`: rows that are contiguous. Addresses of what is not wanted are null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RowNorm {
    /// `[rows, hidden]`: x, or this rank's partial of it.
    pub input: DevicePtr,
    /// `[rows, hidden]`: what is added to x.
    pub residual: DevicePtr,
    /// `[hidden]`.
    pub weight: DevicePtr,
    /// `[rows, hidden]`: the sum of both; may be the residual.
    pub residual_out: DevicePtr,
    /// `[rows, hidden]`, or null; may be the input.
    pub normalized: DevicePtr,
    /// `[rows, hidden]` bytes of e4m3, or null.
    pub quantized: DevicePtr,
    /// `[rows]` f32: the scale of each row of `quantized`.
    pub scales: DevicePtr,
    /// Rows.
    pub rows: u32,
    /// Elements of a row.
    pub hidden: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// 1 if rows and addresses are multiples of 16 bytes.
    pub vectors: u32,
}

/// Parameter of `packet_norm_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReducedNorm {
    /// The packets. Input, output and bytes are not used.
    pub packets: Packets,
    /// The rows; the input is this rank's partial.
    pub norm: RowNorm,
    /// Rows that a rank reduces, in two shots: of all ranks but the last.
    pub chunk: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<RowNorm>() == 72);
    assert!(size_of::<ReducedNorm>() == size_of::<Packets>() + 80);
};

impl RowNorm {
    /// The longest row, in bytes.
    pub const MOST_BYTES: usize = MAX_SEGMENTS * SEGMENT * UNIT;

    /// The same, with vectors if everything is aligned to them.
    #[must_use]
    pub fn with_vectors(self, dtype: DType) -> Self {
        let addresses = [
            self.input,
            self.residual,
            self.weight,
            self.residual_out,
            self.normalized,
            self.quantized,
        ];
        let row = u64::from(self.hidden) * dtype.size() as u64;
        let all = addresses.iter().fold(row, |all, address| all | address.0);
        RowNorm {
            vectors: u32::from(all.is_multiple_of(16)),
            ..self
        }
    }

    /// Units of a row of elements of `size` bytes.
    pub(crate) const fn units(&self, size: usize) -> usize {
        (self.hidden as usize * size).div_ceil(UNIT)
    }
}

/// Which kernel reduces rows by packets before it normalizes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shots {
    /// Every rank sends everything to all.
    One,
    /// Every rank sends rows to the rank that reduces them, which sends the sums to all.
    Two,
}
