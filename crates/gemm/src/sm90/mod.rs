//! The hand-written SM90 GEMM: its configurations, the choice between them, and its plans.
//!
//! The kernel, `cuda/sm90/gemm.cuh`, is persistent: in each block one warpgroup loads tiles of A and B by TMA into a ring of
//! stages and two multiply them (wgmma). Blocks stand alone or in clusters of two that load the tile that they have in
//! common once for both. It is compiled to machine code behind the feature `nvcc`; everything on the host is here always,
//! and without the feature a plan is a typed error.

mod all_gather;
mod config;
mod one_shot;
mod prepared;
mod raster;
mod reduce_tiling;
mod reduction;
mod requirements;
mod tensor_map;

pub use all_gather::PreparedAllGather;
pub use config::{CONFIGS, Tiling, select, tilings};
pub use one_shot::PreparedOneShot;
pub use prepared::Prepared;
pub use raster::Raster;
pub use reduction::PreparedReduction;
pub use requirements::{check_device, check_problem};

/// Ranks that the parameters of a launch have place for: `kMostRanks` in `cuda/sm90/gemm.cuh`.
const RANKS: usize = crate::AllGatherMatmul::MAX_WORLD;
