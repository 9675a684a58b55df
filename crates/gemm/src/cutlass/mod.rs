//! The CUTLASS SM90 kernels: their configurations, the choice between them, and their plans.
//!
//! The feature `cutlass` compiles the kernels into a static library. Everything that decides is
//! here always; without the feature, asking for the kernels is a typed error.

#[cfg(not(feature = "cutlass"))]
mod absent;
#[cfg(feature = "cutlass")]
mod linked;
mod model;
mod requirements;
mod tiling;

#[cfg(not(feature = "cutlass"))]
use absent as library;
#[cfg(feature = "cutlass")]
use linked as library;

pub use library::{Prepared, chunked_configs, configs};
pub(crate) use model::{seconds, slots, speed, tile_seconds, tiles};
pub use model::{select, tilings};
pub use requirements::{ADDRESS_ALIGNMENT, check_device, check_problem};
pub(crate) use requirements::{check_hopper, check_rows, check_single, unsupported};
pub use tiling::{Config, Raster, Tiling};

/// What a GEMM that waits per chunk reads besides its operands: where the rows of A are, and which flags
/// publish them.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "cutlass"),
    expect(dead_code, reason = "no kernel reads it")
)]
pub(crate) struct Arrivals {
    pub pad: warpweave_symm_mem::PadView,
    pub slot: usize,
    /// Device address at which row 0 of A would lie if all rows lay as this rank's own do.
    pub own: u64,
    /// The row after the last that may be read there.
    pub own_end: usize,
    /// Device addresses of the groups, of the tiles' waits, of the waits and of the signals a call.
    pub tables: [u64; 4],
}
