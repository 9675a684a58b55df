//! Parameters of the kernels of `cuda/norm.cu` and `cuda/sentinel_norm.cu`: twins of their structures.

use warpweave_symm_mem::{DType, DevicePtr};

use crate::collective::launch::{PAYLOAD, Packets};

/// Bytes of a row that a thread computes at once without packets: `Units` of four payloads. With packets it
/// is one [`PAYLOAD`].
pub(crate) const UNIT: usize = 48;

/// Most sums of warps of a row: `kMaxWarpSums`.
const MAX_WARP_SUMS: usize = 512;

/// Threads of a warp.
pub(crate) const WARP: usize = 32;

/// Most threads of a block of `world` ranks: `kNormThreads`.
pub(crate) const fn norm_threads(world: usize) -> usize {
    match world {
        0..=2 => 1024,
        3..=4 => 768,
        _ => 512,
    }
}

/// The same of a block that computes without packets: `kLocalThreads`.
pub(crate) const LOCAL_THREADS: usize = 512;

/// Parameter of `add_rms_norm_*` and `stream_add_rms_norm_*`: rows that are contiguous. Addresses of what is
/// not wanted are null.
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
    /// 1 / hidden.
    pub share: f32,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Rows and addresses are multiples of so many bytes: 16, 4 or 2.
    pub alignment: u32,
    /// Stages of a block that streams rows through shared memory, which its launch chooses; else zero.
    pub stages: u32,
}

/// Parameter of `packet_norm_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReducedNorm {
    /// The packets. Input, output and bytes are not used.
    pub packets: Packets,
    /// The rows; the input is this rank's partial.
    pub norm: RowNorm,
}

const _: () = {
    assert!(size_of::<RowNorm>() == 80);
    assert!(size_of::<ReducedNorm>() == size_of::<Packets>() + 80);
};

impl RowNorm {
    /// The longest row, in bytes.
    pub const MOST_BYTES: usize = MAX_WARP_SUMS * WARP * PAYLOAD;

    /// The same, with what follows from the rest: the share and the alignment.
    #[must_use]
    pub fn completed(self, dtype: DType) -> Self {
        let addresses = [
            self.input,
            self.residual,
            self.weight,
            self.residual_out,
            self.normalized,
            self.quantized,
        ];
        let row = self.row_bytes(dtype.size()) as u64;
        let all = addresses.iter().fold(row, |all, address| all | address.0);
        let alignment = [16, 4].into_iter().find(|&bytes| all.is_multiple_of(bytes));
        RowNorm {
            share: 1.0 / self.hidden as f32,
            alignment: alignment.unwrap_or(2) as u32,
            ..self
        }
    }

    /// Bytes of a row of elements of `size` bytes.
    pub(crate) const fn row_bytes(&self, size: usize) -> usize {
        self.hidden as usize * size
    }

    /// Packets that a rank sends another of a row.
    pub(crate) const fn packets(&self, size: usize) -> usize {
        self.row_bytes(size).div_ceil(PAYLOAD)
    }
}
