//! The hand-written SM90 GEMM: its configurations, the choice between them, and prepared launches.
//!
//! The kernel, `cuda/sm90/gemm.cuh`, is persistent: in each block one warpgroup loads tiles of A and B by TMA
//! into a ring of stages, and two multiply them (wgmma). Blocks are single or in clusters of two that share
//! one operand by multicast. GEMMs of few rows have a kernel of their own, `cuda/sm90/few_rows.cu`. The
//! feature `nvcc` compiles the device code; the host code is always compiled, and without the feature
//! preparing a launch is a typed error.

mod all_gather;
mod config;
mod few_rows;
mod one_shot;
mod prepared;
mod raster;
mod reduce_tiling;
mod reduction;
mod requirements;
mod resident;
mod tensor_map;

pub use crate::Tiling;
pub use all_gather::PreparedAllGather;
pub(crate) use config::pulling;
pub use config::{CONFIGS, FEW_ROWS_TILING, select, tilings};
pub use few_rows::{PreparedFewRows, runs as runs_few_rows, serves as serves_few_rows};
pub use one_shot::PreparedOneShot;
pub use prepared::Prepared;
pub use raster::Raster;
pub use reduction::PreparedReduction;
pub use requirements::{check_device, check_problem};

/// Ranks that the parameters of a launch have place for: `kMostRanks` in `cuda/sm90/gemm.cuh`.
const RANKS: usize = crate::AllGatherMatmul::MAX_WORLD;

/// SMs that a launch leaves free where it waits for signals of stream operations. Its blocks fill an SM and
/// stay until all rows have arrived; a signal or a wait is a kernel that a peer's rows may depend on, and
/// needs an SM meanwhile.
const LEFT_TO_SIGNALS: u32 = 2;

/// SMs that such a launch may use.
pub(crate) fn sms_left_by_signals(device: &warpweave_symm_mem::DeviceInfo) -> u32 {
    device.sms.saturating_sub(LEFT_TO_SIGNALS).max(1)
}
