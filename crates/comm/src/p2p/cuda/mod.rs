//! The CUDA backend's transfers: kernels, grids and parameters.
//!
//! `transfer_sm` runs from compute capability 8.0 on, `transfer_bulk` on Hopper alone.

mod grid;
mod parameters;

use std::ffi::c_void;

use cudarc::driver::sys::CUstream;
use warpweave_symm_mem::cuda::Image;
use warpweave_symm_mem::cuda::{CudaStream, LaunchConfig};
use warpweave_symm_mem::{Cuda, PadView, device_image};

use super::backend::{FusedTransfer, TransferBackend, TransferKernel};
use crate::error::Result;
use grid::Limits;
use parameters::Transfer;

static COPY: Image = device_image!("copy", sm_90a, compute_80);
static BULK_COPY: Image = device_image!("bulk_copy", sm_90a);

const SIGNAL: &str = "transfer_signal";

/// Every kernel with the image that holds it.
fn all() -> [(&'static Image, &'static str); 3] {
    [
        (&COPY, SIGNAL),
        (&COPY, TransferKernel::Sm.kernel()),
        (&BULK_COPY, TransferKernel::Bulk.kernel()),
    ]
}

fn argument<T>(value: &mut T) -> *mut c_void {
    (&raw mut *value).cast()
}

impl TransferBackend for Cuda {
    fn preload_transfers(&self) -> Result<()> {
        for (image, name) in all() {
            match self.function(image, name) {
                // Raises the function's limit on shared memory, which a launch would do otherwise.
                Ok(function) if name == TransferKernel::Bulk.kernel() => {
                    function.max_resident_blocks(grid::BULK_THREADS, grid::MOST_SHARED)?;
                }
                Err(error) if !error.is_unavailable() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn driver_stream(stream: &CudaStream) -> Option<CUstream> {
        Some(stream.raw())
    }

    unsafe fn signal_unless_stopped(
        &self,
        stream: &CudaStream,
        pad: &PadView,
        slot: usize,
        peer: usize,
    ) -> Result<()> {
        let (mut pad, mut slot, mut peer) = (*pad, slot as u32, peer as u32);
        let mut parameters = [argument(&mut pad), argument(&mut slot), argument(&mut peer)];
        let function = self.function(&COPY, SIGNAL)?;
        // SAFETY: the kernel takes a pad, a slot and a peer by value; the pad is the caller's obligation.
        unsafe {
            self.launch(
                stream,
                &function,
                LaunchConfig::linear(1, 1),
                &mut parameters,
            )?
        };
        Ok(())
    }

    unsafe fn fused_transfer(&self, stream: &CudaStream, launch: &FusedTransfer) -> Result<()> {
        let congruent = launch.to.0 % 16 == launch.from.0 % 16;
        let engine = if congruent {
            launch.engine
        } else {
            TransferKernel::Sm
        };
        let limits = Limits {
            sms: self.sms(),
            max_blocks: launch.max_blocks,
        };
        let (image, threads, shape) = match engine {
            TransferKernel::Sm => (&COPY, grid::SM_THREADS, grid::sm(launch.bytes, limits)),
            TransferKernel::Bulk => (
                &BULK_COPY,
                grid::BULK_THREADS,
                grid::bulk(launch.bytes, limits),
            ),
        };
        let function = self.function(image, engine.kernel())?;
        let config = LaunchConfig {
            shared_bytes: shape.shared_bytes(),
            ..LaunchConfig::linear(shape.blocks, threads)
        };
        let mut transfer = Transfer::new(launch, shape);
        // SAFETY: the structure is the kernel's parameter; the rest is the caller's obligation.
        unsafe { self.launch(stream, &function, config, &mut [argument(&mut transfer)])? };
        Ok(())
    }
}

#[cfg(all(test, feature = "nvcc"))]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_its_image() {
        for (image, name) in all() {
            let name = name.as_bytes();
            let known = image.sm_90a().windows(name.len()).any(|part| part == name);
            assert!(known, "{} of `{}`", name.escape_ascii(), image.name());
        }
    }
}
