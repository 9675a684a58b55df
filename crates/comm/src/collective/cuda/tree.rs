//! The kernels of `cuda/tree.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image};
use warpweave_symm_mem::{Cuda, DType, Result, device_image, kernel_name};

use super::{DTYPES, launch, unknown};
use crate::collective::enqueue::PACKET_THREADS;
use crate::collective::launch::Tree;

static TREE: Image = device_image!("tree", sm_90a, compute_80);

const fn kernel(dtype: DType) -> Option<&'static str> {
    Some(kernel_name!(dtype, "tree_all_reduce", ""))
}

/// Every kernel with the image that holds it.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    DTYPES
        .into_iter()
        .filter_map(kernel)
        .map(|name| (&TREE, name))
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective).
pub(super) unsafe fn all_reduce(
    cuda: &Cuda,
    stream: &CudaStream,
    dtype: DType,
    tree: &Tree,
    blocks: u32,
) -> Result<()> {
    let name = kernel(dtype).ok_or_else(|| unknown(dtype))?;
    let grid = (blocks, PACKET_THREADS as u32);
    // SAFETY: the kernel takes the structure by value; the rest is the caller's obligation.
    unsafe { launch(cuda, stream, &TREE, name, grid, *tree) }
}
