//! Where a rank computes: one device, that candle and Warpweave both have, and one stream, on which both
//! enqueue.

use candle_core::Device;
use warpweave_symm_mem::{Backend, Host};

use crate::error::Result;
use crate::parallel::Launch;
#[cfg(feature = "cuda")]
use crate::scratch::Scratch;

/// A device and a stream.
#[derive(Clone, Debug)]
pub struct Place<B: Backend> {
    /// candle's.
    pub candle: Device,
    /// Warpweave's.
    pub backend: B,
    /// Of both.
    pub stream: B::Stream,
}

impl<B: Backend> Place<B> {
    /// As [`Parallel::capture`](crate::parallel::Parallel::capture).
    ///
    /// # Safety
    /// The same.
    ///
    /// # Errors
    /// Those of `step`; errors of the device.
    pub unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        #[cfg(feature = "cuda")]
        if let Ok(device) = self.candle.as_cuda_device() {
            let capture = || self.backend.capture(&self.stream, step);
            let (graph, scratch) = Scratch::of(device, capture)?;
            let place = self.clone();
            let launch = move || {
                let _results = &scratch;
                // SAFETY: the caller's obligation; the results are there.
                unsafe { place.backend.launch_graph(&graph, &place.stream)? };
                Ok(())
            };
            return Ok(Some(Launch(Box::new(launch))));
        }
        let _ = step;
        Ok(None)
    }
}

impl Place<Host> {
    /// The CPU.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn host() -> Result<Self> {
        let backend = Host::new();
        let stream = backend.stream(Default::default())?;
        Ok(Place {
            candle: Device::Cpu,
            backend,
            stream,
        })
    }
}

#[cfg(feature = "cuda")]
impl Place<warpweave_symm_mem::Cuda> {
    /// The GPU of the rank `local` of this machine: candle's context and stream, which Warpweave adopts.
    /// Ranks share GPUs where there are fewer.
    ///
    /// # Errors
    /// There is no GPU, or the driver is too old.
    pub fn gpu(local: usize) -> Result<Self> {
        let gpus = warpweave_symm_mem::Cuda::device_count()?.max(1);
        let candle = Device::new_cuda_with_stream(local % gpus)?;
        let device = candle.as_cuda_device()?;
        // SAFETY: all tensors are made and used on the one stream of this device. Warpweave's own streams are
        // ordered with it by events of its own.
        unsafe { device.disable_event_tracking() };
        let stream = device.cuda_stream();
        let backend = warpweave_symm_mem::Cuda::adopt(stream.context().clone())?;
        let stream = backend.adopt_stream(stream)?;
        Ok(Place {
            candle,
            backend,
            stream,
        })
    }
}
