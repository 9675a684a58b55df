//! What a GEMM that waits per chunk reads besides its operands.

use warpweave_symm_mem::PadView;

/// Where the rows of A are and which flags publish them.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cutlass"),
    expect(dead_code, reason = "no kernel reads it")
)]
pub(crate) struct Arrivals {
    pub pad: PadView,
    pub slot: usize,
    /// Device address at which row 0 of A would lie if all rows lay as this rank's own do.
    pub own: u64,
    /// The row after the last that may be read there.
    pub own_end: usize,
    /// Device addresses of the groups, of the tiles' waits, of the waits and of the signals a call.
    pub tables: [u64; 4],
}
