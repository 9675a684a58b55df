//! The kernels of `cuda/multimem.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image};
use warpweave_symm_mem::{Cuda, DType, Result, device_image, kernel_name};

use super::{DTYPES, launch, unknown};
use crate::collective::enqueue::DIRECT_THREADS;
use crate::collective::launch::Multimem;

static MULTIMEM: Image = device_image!("multimem", sm_90a);

const fn reduce_kernel(dtype: DType) -> Option<&'static str> {
    Some(kernel_name!(dtype, "multimem_reduce", ""))
}

/// Every kernel with the image that holds it.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    let sums = DTYPES.into_iter().filter_map(reduce_kernel);
    sums.chain(["multimem_spread"])
        .map(|name| (&MULTIMEM, name))
}

/// Whether vectors of 16 bytes can be stored to `to`, or to this rank, from `from`.
pub(super) fn is_aligned(launch: &Multimem) -> bool {
    let rank = launch.direct.group.pad.rank as usize;
    (launch.from.0 | launch.to.0 | launch.direct.to.0[rank].0).is_multiple_of(16)
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective); the launch
/// is aligned.
pub(super) unsafe fn spread(
    cuda: &Cuda,
    stream: &CudaStream,
    multimem: &Multimem,
    blocks: u32,
) -> Result<()> {
    let grid = (blocks, DIRECT_THREADS as u32);
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch(cuda, stream, &MULTIMEM, "multimem_spread", grid, *multimem) }
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective); the launch
/// is aligned.
pub(super) unsafe fn reduce(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    multimem: &Multimem,
    blocks: u32,
) -> Result<()> {
    let name = reduce_kernel(dtype).ok_or_else(|| unknown(dtype))?;
    let grid = (blocks, DIRECT_THREADS as u32);
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch(cuda, stream, &MULTIMEM, name, grid, *multimem) }
}
