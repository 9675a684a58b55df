//! The kernels of `cuda/bulk.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, DType, Result, device_image};

use super::{DTYPES, WORLDS, launch_shared, unknown, vector};
use crate::collective::bulk::{
    MOVE_STAGES, MOVE_THREADS, REDUCE_STAGES, REDUCE_THREADS, RESULT_STAGES, STAGE,
};
use crate::collective::launch::Direct;

static BULK: Image = device_image!("bulk", sm_90a);

fn reduce_kernel(dtype: DType, world: usize) -> Option<&'static str> {
    by_dtype_and_world!(dtype, world, "reduce_bulk")
}

/// Every kernel with the image that holds it.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    let sums = WORLDS
        .into_iter()
        .flat_map(|world| DTYPES.map(|dtype| reduce_kernel(dtype, world)))
        .flatten();
    sums.chain(["exchange_bulk"]).map(|name| (&BULK, name))
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective); addresses
/// and bytes are multiples of 16.
pub(super) unsafe fn exchange(
    cuda: &Cuda,
    stream: &CudaStream,
    direct: &Direct,
    blocks: u32,
) -> Result<()> {
    let config = LaunchConfig {
        shared_bytes: (MOVE_STAGES * STAGE) as u32,
        ..LaunchConfig::linear(blocks, MOVE_THREADS as u32)
    };
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &BULK, "exchange_bulk", config, *direct) }
}

/// Whether [`reduce`] can: all addresses are multiples of 16.
pub(super) fn reduces(direct: &Direct, dtype: DType) -> bool {
    let addresses = Direct {
        bytes: 0,
        ..*direct
    };
    vector(&addresses, dtype.size()) == 16
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective); addresses
/// are multiples of 16.
pub(super) unsafe fn reduce(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    direct: &Direct,
    blocks: u32,
) -> Result<()> {
    let world = direct.group.pad.world as usize;
    let name = reduce_kernel(dtype, world).ok_or_else(|| unknown(dtype))?;
    // Room for the smallest of the worlds that kernels are compiled for, which has the largest pieces.
    let shared = REDUCE_STAGES * STAGE + RESULT_STAGES * STAGE / WORLDS[0];
    let config = LaunchConfig {
        shared_bytes: shared as u32,
        ..LaunchConfig::linear(blocks, REDUCE_THREADS as u32)
    };
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch_shared(cuda, stream, &BULK, name, config, *direct) }
}
