//! Residual addition and RMSNorm: the launches of `norm.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, DType, Result, device_image, kernel_name};

use super::{DTYPES, WORLDS, launch_shared, unknown};
use crate::collective::norm::launch::{
    LOCAL_THREADS, NORM_THREADS, ReducedNorm, RowNorm, SEGMENT, Shots,
};

static NORM: Image = device_image!("norm", sm_90a, compute_80);

/// Threads of a warp, which computes a segment of a row at a time.
const WARP: usize = SEGMENT;

/// The largest cluster that every device can launch.
const MAX_CLUSTER: u32 = 8;

/// Most blocks for which rows are divided among several: as many use the links well, and all are resident,
/// however clusters lie on the device.
const DIVIDED: u32 = 64;

/// Blocks of an SM that compute rows without communication. None waits for another rank, so there may be more
/// than are resident.
const BLOCKS_PER_SM: u32 = 8;

fn local_kernel(dtype: DType) -> &'static str {
    kernel_name!(dtype, "add_rms_norm", "")
}

fn reduced_kernel(shots: Shots, dtype: DType, world: usize) -> Option<&'static str> {
    match shots {
        Shots::One => by_dtype_and_world!(dtype, world, "packet_norm_one_shot"),
        Shots::Two => by_dtype_and_world!(dtype, world, "packet_norm_two_shot"),
    }
}

/// Every kernel.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    let reduced = WORLDS.into_iter().flat_map(|world| {
        DTYPES.into_iter().flat_map(move |dtype| {
            [Shots::One, Shots::Two]
                .into_iter()
                .filter_map(move |shots| reduced_kernel(shots, dtype, world))
        })
    });
    let local = DTYPES.into_iter().map(local_kernel);
    local.chain(reduced).map(|name| (&NORM, name))
}

/// A cluster of blocks for each row, as large as the grid allows: one block stores less to the links than
/// they carry. At most `most` blocks of at most `threads` threads.
fn grid(
    norm: &RowNorm,
    dtype: DType,
    (most, threads): (u32, usize),
    clusters: bool,
) -> LaunchConfig {
    let segments = norm.units(dtype.size()).div_ceil(SEGMENT) as u32;
    let most = most.max(1);
    let mut cluster = 1;
    while clusters
        && 2 * cluster <= MAX_CLUSTER.min(segments)
        && norm.rows.saturating_mul(2 * cluster) <= most.min(DIVIDED)
    {
        cluster *= 2;
    }
    let warps = segments.div_ceil(cluster).min((threads / WARP) as u32);
    let rows = norm.rows.clamp(1, most / cluster);
    let config = LaunchConfig::linear(rows * cluster, warps * WARP as u32);
    LaunchConfig {
        cluster: (cluster > 1).then_some((cluster, 1, 1)),
        // These kernels wait for their predecessors on the device.
        programmatic: true,
        ..config
    }
}

/// # Safety
/// As for [`CollectiveKernels::add_rms_norm`](crate::CollectiveKernels::add_rms_norm).
pub(super) unsafe fn add_rms_norm(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    norm: &RowNorm,
) -> Result<()> {
    let most = (cuda.sms() * BLOCKS_PER_SM, LOCAL_THREADS);
    let config = grid(norm, dtype, most, is_hopper(cuda));
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &NORM, local_kernel(dtype), config, *norm) }
}

/// # Safety
/// As for [`CollectiveKernels::reduced_norm`](crate::CollectiveKernels::reduced_norm).
pub(super) unsafe fn reduced_norm(
    cuda: &Cuda,
    stream: &CudaStream,
    shots: Shots,
    dtype: DType,
    launch: &ReducedNorm,
    blocks: u32,
) -> Result<()> {
    let world = launch.packets.group.pad.world as usize;
    let name = reduced_kernel(shots, dtype, world).ok_or_else(|| unknown(dtype))?;
    let most = (blocks, NORM_THREADS);
    let config = grid(&launch.norm, dtype, most, is_hopper(cuda));
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &NORM, name, config, *launch) }
}

/// Whether the machine code for clusters runs; PTX for other devices has one block for a row.
fn is_hopper(cuda: &Cuda) -> bool {
    cuda.compute_capability() == (9, 0)
}
