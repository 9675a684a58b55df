//! One launch: what the kernel takes, and how each backend launches it.

use warpweave_overlap::execute::{Addresses, Launch, Result};

use crate::kernel::Rotate;
use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{Cuda, DevicePtr, Host, PadView, device_image};

use crate::host;

/// The kernel's parameter. `cuda/rotate.cu` has the same layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RotateLaunch {
    /// This rank's block: `count` f32.
    pub block: DevicePtr,
    /// This rank's receive buffer, `count` f32 in symmetric memory.
    pub receive: DevicePtr,
    /// The right neighbour's receive buffer, as mapped here.
    pub there: DevicePtr,
    /// Where the left neighbour's block goes: `count` f32.
    pub out: DevicePtr,
    /// The pad of the two slots.
    pub pad: PadView,
    /// Elements of a block.
    pub count: u32,
    /// Slot: "the block is in your receive buffer".
    pub sent: u32,
    /// Slot: "your block has been taken out of my receive buffer".
    pub taken: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RotateLaunch>() == 128);

impl Launch<Host> for Rotate {
    unsafe fn enqueue(
        &self,
        backend: &Host,
        stream: &HostStream,
        at: &Addresses<'_>,
    ) -> Result<()> {
        let launch = self.launch(at)?;
        let work = move || {
            // SAFETY: the caller's obligations are those of the twin, kept until the work has ended.
            unsafe { host::rotate(&launch) };
            Ok(())
        };
        backend.launch(stream, "rotate", work)?;
        Ok(())
    }
}

/// Machine code for Hopper, PTX for what comes after Ampere; empty without the feature `nvcc`.
static ROTATE: Image = device_image!("rotate", sm_90a, compute_80);

/// One block, as the kernel asks.
const THREADS: u32 = 512;

impl Launch<Cuda> for Rotate {
    unsafe fn enqueue(
        &self,
        backend: &Cuda,
        stream: &CudaStream,
        at: &Addresses<'_>,
    ) -> Result<()> {
        let function = backend.function(&ROTATE, "rotate")?;
        let config = LaunchConfig::linear(1, THREADS);
        let mut launch = self.launch(at)?;
        let parameters = &mut [(&raw mut launch).cast()];
        // SAFETY: the kernel takes one parameter of this layout; the rest is the caller's obligation.
        unsafe { Cuda::launch(backend, stream, &function, config, parameters)? };
        Ok(())
    }

    /// Loads the kernel, so that a build without it says so before any rank waits.
    fn probe(&self, backend: &Cuda, _: &CudaStream, _: &Addresses<'_>) -> Result<()> {
        backend.function(&ROTATE, "rotate")?;
        Ok(())
    }
}
