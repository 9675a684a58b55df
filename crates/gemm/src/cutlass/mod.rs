//! The CUTLASS SM90 kernels: their configurations, the choice between them, and their plans.
//!
//! The feature `cutlass` compiles the kernels into a static library. Everything that decides is
//! here always; without the feature, asking for the kernels is a typed error.

#[cfg(not(feature = "cutlass"))]
mod absent;
mod arrivals;
#[cfg(feature = "cutlass")]
mod linked;
mod model;
mod requirements;
mod tiling;

#[cfg(not(feature = "cutlass"))]
use absent as library;
#[cfg(feature = "cutlass")]
use linked as library;

pub(crate) use arrivals::Arrivals;
pub use library::{Prepared, chunked_configs, configs};
pub(crate) use model::{seconds, slots, tile_seconds, tiles};
pub use model::{select, tilings};
pub use requirements::{ADDRESS_ALIGNMENT, check_device, check_problem};
pub(crate) use requirements::{check_hopper, check_rows, check_single, unsupported};
pub use tiling::{Config, Raster, Tiling};
