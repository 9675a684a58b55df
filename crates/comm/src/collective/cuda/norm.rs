//! Residual addition and RMSNorm: the launches of `norm.cu`, `norm_stream.cu` and `sentinel_norm.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, DType, Result, device_image, kernel_name};

use super::{DTYPES, WORLDS, launch_shared, packet_config, unknown};
use crate::collective::norm::launch::{
    LOCAL_THREADS, ReducedNorm, RowNorm, UNIT, WARP, norm_threads,
};

static NORM: Image = device_image!("norm", sm_90a, compute_80);
static NORM_STREAM: Image = device_image!("norm_stream", sm_90a);
static SENTINEL_NORM: Image = device_image!("sentinel_norm", sm_90a, compute_80);

/// The largest cluster that every device can launch.
const MAX_CLUSTER: u32 = 8;

/// Most blocks in pairs, which are on neighbouring SMs.
const MOST_IN_PAIRS: u32 = 128;

/// Most blocks in larger clusters: as many use the links well, and all are resident, however clusters lie on
/// the device.
const MOST_IN_CLUSTERS: u32 = 64;

/// Blocks of an SM that compute rows without communication. None waits for another rank, so there may be more
/// than are resident.
const BLOCKS_PER_SM: u32 = 8;

/// Shared memory of an SM for the stages of blocks that stream rows.
const STREAM_BYTES: usize = 208 << 10;
/// Most threads of such a block: `kStreamThreads`.
const STREAM_THREADS: usize = 384;
/// Stages of such a block: at least, and at most, which is `kMostStages`.
const STAGES: [usize; 2] = [3, 6];

/// `vectors`: for rows of whole vectors.
fn local_kernel(dtype: DType, vectors: bool) -> &'static str {
    match vectors {
        true => kernel_name!(dtype, "add_rms_norm", ""),
        false => kernel_name!(dtype, "add_rms_norm_elements", ""),
    }
}

fn stream_kernel(dtype: DType) -> &'static str {
    kernel_name!(dtype, "stream_add_rms_norm", "")
}

/// `words`: for rows of whole words.
fn reduced_kernel(dtype: DType, world: usize, words: bool) -> Option<&'static str> {
    match words || dtype == DType::F32 {
        true => by_dtype_and_world!(dtype, world, "packet_norm"),
        false => by_dtype_and_world!(dtype, world, "packet_norm_halves"),
    }
}

/// Every kernel.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    let mut names = Vec::new();
    for (dtype, wide) in DTYPES
        .into_iter()
        .flat_map(|dtype| [(dtype, true), (dtype, false)])
    {
        names.push(local_kernel(dtype, wide));
        names.extend(
            WORLDS
                .into_iter()
                .filter_map(|world| reduced_kernel(dtype, world, wide)),
        );
    }
    let by_sentinels = WORLDS.into_iter().flat_map(|world| {
        let kernels = DTYPES.map(|dtype| by_dtype_and_world!(dtype, world, "sentinel_norm"));
        kernels.into_iter().flatten()
    });
    let names = names.into_iter().map(|name| (&NORM, name));
    let streams = DTYPES.map(|dtype| (&NORM_STREAM, stream_kernel(dtype)));
    names
        .chain(by_sentinels.map(|name| (&SENTINEL_NORM, name)))
        .chain(streams)
}

/// A cluster of blocks for each row, as large as the grid allows: one block stores less to the links than
/// they carry. A thread computes one of the `units` of a row at a time. At most `most` blocks of at most
/// `threads` threads.
fn grid(
    (rows, units): (u32, usize),
    (most, threads): (u32, usize),
    clusters: bool,
) -> LaunchConfig {
    let each = units.div_ceil(WARP) as u32;
    let most = most.max(1);
    let in_clusters = |size| match size {
        ..=2 => MOST_IN_PAIRS,
        _ => MOST_IN_CLUSTERS,
    };
    let mut cluster = 1;
    while clusters
        && 2 * cluster <= MAX_CLUSTER.min(each)
        && rows.saturating_mul(2 * cluster) <= most.min(in_clusters(2 * cluster))
    {
        cluster *= 2;
    }
    let warps = each.div_ceil(cluster).min((threads / WARP) as u32);
    let rows = rows.clamp(1, most / cluster);
    let config = LaunchConfig::linear(rows * cluster, warps * WARP as u32);
    LaunchConfig {
        cluster: (cluster > 1).then_some((cluster, 1, 1)),
        // These kernels wait for their predecessors on the device.
        programmatic: true,
        ..config
    }
}

/// The launch that streams rows through shared memory, if there are more of them than resident blocks, and
/// they are of whole vectors and not too long: two blocks for each SM, or one with longer rows.
fn streamed(sms: u32, dtype: DType, norm: &RowNorm) -> Option<(LaunchConfig, RowNorm)> {
    if norm.alignment < 16 || norm.rows <= sms * BLOCKS_PER_SM {
        return None;
    }
    let bytes = norm.row_bytes(dtype.size());
    let [least, most] = STAGES;
    let stages = |per_sm| STREAM_BYTES / per_sm / (2 * bytes);
    let per_sm = [2, 1].into_iter().find(|&per_sm| stages(per_sm) >= least)?;
    let stages = stages(per_sm).min(most);
    let threads = bytes
        .div_ceil(UNIT)
        .next_multiple_of(WARP)
        .min(STREAM_THREADS);
    let config = LaunchConfig {
        shared_bytes: (stages * 2 * bytes) as u32,
        programmatic: true,
        ..LaunchConfig::linear(sms * per_sm as u32, threads as u32)
    };
    let norm = RowNorm {
        stages: stages as u32,
        ..*norm
    };
    Some((config, norm))
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn add_rms_norm(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    norm: &RowNorm,
) -> Result<()> {
    if is_hopper(cuda)
        && let Some((config, norm)) = streamed(cuda.sms(), dtype, norm)
    {
        let name = stream_kernel(dtype);
        // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
        return unsafe { launch_shared(cuda, stream, &NORM_STREAM, name, config, norm) };
    }
    let most = (cuda.sms() * BLOCKS_PER_SM, LOCAL_THREADS);
    let name = local_kernel(dtype, norm.alignment >= 16);
    let units = norm.row_bytes(dtype.size()).div_ceil(UNIT);
    let config = grid((norm.rows, units), most, is_hopper(cuda));
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &NORM, name, config, *norm) }
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn reduced_norm(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    launch: &ReducedNorm,
    blocks: u32,
) -> Result<()> {
    let world = launch.packets.group.pad.world as usize;
    let words = launch.norm.alignment >= 4;
    let name = reduced_kernel(dtype, world, words).ok_or_else(|| unknown(dtype))?;
    let most = (blocks, norm_threads(world));
    let rows = (launch.norm.rows, launch.norm.packets(dtype.size()));
    let config = grid(rows, most, is_hopper(cuda));
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &NORM, name, config, *launch) }
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn sentinel_norm(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    launch: &ReducedNorm,
    blocks: u32,
) -> Result<()> {
    let world = launch.packets.group.pad.world as usize;
    let name = by_dtype_and_world!(dtype, world, "sentinel_norm").ok_or_else(|| unknown(dtype))?;
    let units = launch.norm.row_bytes(dtype.size()).div_ceil(UNIT);
    let config = packet_config(blocks, crate::collective::sentinel::norm_threads(units));
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &SENTINEL_NORM, name, config, *launch) }
}

/// Whether the machine code for clusters runs; PTX for other devices has one block for a row.
fn is_hopper(cuda: &Cuda) -> bool {
    cuda.compute_capability() == (9, 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use warpweave_symm_mem::DevicePtr;

    use super::*;

    #[test]
    fn many_rows_of_vectors_are_streamed_as_long_as_stages_fit() {
        let rows = |rows, hidden| RowNorm {
            input: DevicePtr(16),
            residual: DevicePtr(32),
            weight: DevicePtr(48),
            residual_out: DevicePtr(32),
            normalized: DevicePtr(16),
            quantized: DevicePtr::NULL,
            scales: DevicePtr::NULL,
            rows,
            hidden,
            share: 0.0,
            epsilon: 0.0,
            alignment: 0,
            stages: 0,
        };
        // Blocks of an SM, threads and stages.
        let of = |count, hidden| {
            let norm = rows(count, hidden).completed(DType::Bf16);
            let (config, norm) = streamed(132, DType::Bf16, &norm)?;
            let stage = 2 * norm.row_bytes(2) as u32;
            let per_sm = config.grid.0 / 132;
            assert!(per_sm * config.shared_bytes <= STREAM_BYTES as u32);
            assert_eq!(config.shared_bytes, norm.stages * stage);
            Some((per_sm, config.block.0, norm.stages))
        };
        assert_eq!(of(1056, 4096), None);
        assert_eq!(of(1057, 4096), Some((2, 192, 6)));
        assert_eq!(of(1057, 8), Some((2, 32, 6)));
        assert_eq!(of(1057, 8192), Some((2, 352, 3)));
        assert_eq!(of(1057, 16_384), Some((1, 384, 3)));
        assert_eq!(of(1057, 20_480), None);
        // Not whole vectors.
        assert_eq!(of(1057, 4100), None);
    }
}
