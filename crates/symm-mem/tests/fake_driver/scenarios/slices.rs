//! Slices of cudarc in memory that peers can open.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaStream, DriverError, result, sys};
use warpweave_symm_mem::{Cuda, Error, IpcCache, Result};

use super::bodies::{BYTES, KERNELS};
use super::{Kept, Rank};

/// A slice that cudarc's own work uses when it is dropped.
pub fn shared(rank: &Rank) -> Result<Kept> {
    let device = rank.device()?;
    let theirs = |e: DriverError| Error::Stream {
        device: device.name().into(),
        cause: e.to_string(),
    };
    device.bind()?;
    let stream = device.context().new_stream().map_err(theirs)?;
    let slice = device.shareable_slice::<u32>(&stream, BYTES)?;
    let cache = IpcCache::new(&device)?;
    let exchange = rank.exchange.as_ref();
    let shared = cache.register(exchange, slice.address(), slice.bytes())?;
    assert_eq!(shared.local(), slice.address());
    cache.release(exchange, shared)?;
    cache.close(exchange)?;
    let module = Loaded::new(&device, &stream)?;
    module.delay(Duration::from_millis(3))?;
    // SAFETY: the slice is alive, and dropping it waits for this.
    let filled =
        unsafe { result::memset_d8_async(slice.address().0, 1, slice.bytes(), stream.cu_stream()) };
    filled.map_err(theirs)?;
    rank.barrier("done")?;
    // In this order: the slice goes while the work on it is in flight.
    Ok(Box::new((slice, module, device)))
}

/// Device code that a program loaded without this crate.
struct Loaded {
    module: sys::CUmodule,
    stream: Arc<CudaStream>,
}

impl Loaded {
    fn new(device: &Cuda, stream: &Arc<CudaStream>) -> Result<Self> {
        device.bind()?;
        let mut module = std::ptr::null_mut();
        let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the image ends with a zero, and the place of the module is a local.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                KERNELS.sm_90a().as_ptr().cast(),
                0,
                options,
                values,
            )
        };
        ok(loaded)?;
        Ok(Loaded {
            module,
            stream: stream.clone(),
        })
    }

    /// Keeps the stream busy.
    fn delay(&self, time: Duration) -> Result<()> {
        let mut function = std::ptr::null_mut();
        let mut ns = time.as_nanos() as u64;
        let mut parameters = [(&raw mut ns).cast()];
        let config = sys::CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream.cu_stream(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        // SAFETY: the module is loaded; the kernel takes nanoseconds, and all arguments live through the
        // calls.
        unsafe {
            ok(sys::cuModuleGetFunction(
                &mut function,
                self.module,
                c"warpweave_delay".as_ptr(),
            ))?;
            let none = std::ptr::null_mut();
            ok(sys::cuLaunchKernelEx(
                &config,
                function,
                parameters.as_mut_ptr(),
                none,
            ))
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: loaded once and unloaded once, with its work done.
        unsafe {
            let _ = sys::cuStreamSynchronize(self.stream.cu_stream());
            let _ = sys::cuModuleUnload(self.module);
        }
    }
}

fn ok(result: sys::CUresult) -> Result<()> {
    result.result().map_err(|e| Error::Stream {
        device: "a device".into(),
        cause: e.to_string(),
    })
}
