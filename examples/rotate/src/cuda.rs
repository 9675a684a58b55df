//! The launch of `cuda/rotate.cu`.

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, Result, device_image};

use crate::kernel::{Rotate, RotateKernel};

/// Machine code for Hopper, PTX for what comes after Ampere; empty without the feature `nvcc`.
static ROTATE: Image = device_image!("rotate", sm_90a, compute_80);

/// One block, as the kernel asks.
const THREADS: u32 = 512;

impl RotateKernel for Cuda {
    unsafe fn rotate(&self, stream: &CudaStream, mut launch: Rotate) -> Result<()> {
        let function = self.function(&ROTATE, "rotate")?;
        let config = LaunchConfig::linear(1, THREADS);
        let parameters = &mut [(&raw mut launch).cast()];
        // SAFETY: the kernel takes one parameter of this layout; the rest is the caller's obligation.
        unsafe { Cuda::launch(self, stream, &function, config, parameters) }
    }
}
