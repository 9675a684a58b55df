//! The flags that stop the waits of a device: see [`StopFlags`].

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

use super::Cuda;
use super::driver::{check, check_in_drop};
use crate::backend::{Backend, DevicePtr};
use crate::error::Result;
use crate::pad::StopFlags;

/// A flag in device memory, and one in host memory that the device can read while a kernel runs.
#[derive(Debug)]
pub(super) struct StopMemory {
    context: Arc<CudaContext>,
    device: sys::CUdeviceptr,
    host: NonNull<AtomicU32>,
}

// SAFETY: the flag is an atomic, and the driver takes its functions from any thread.
unsafe impl Send for StopMemory {}
// SAFETY: as above.
unsafe impl Sync for StopMemory {}

impl StopMemory {
    fn new(cuda: &Cuda) -> Result<Self> {
        cuda.bind()?;
        let (mut host, mut device): (*mut c_void, _) = (std::ptr::null_mut(), 0);
        // Unified addressing gives every device the same address for it.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: `host` is valid for a write.
        match unsafe { sys::cuMemHostAlloc(&mut host, size_of::<u32>(), flags) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(cuda.out_of_memory(size_of::<u32>(), "pinned host"));
            }
            result => check(result, "cuMemHostAlloc", cuda.name())?,
        }
        // SAFETY: as above.
        let allocated = match unsafe { sys::cuMemAlloc_v2(&mut device, size_of::<u32>()) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(cuda.out_of_memory(size_of::<u32>(), "device"))
            }
            result => check(result, "cuMemAlloc", cuda.name()),
        };
        if let Err(error) = allocated {
            // SAFETY: allocated above, and nobody knows it.
            check_in_drop(
                unsafe { sys::cuMemFreeHost(host) },
                "cuMemFreeHost",
                cuda.name(),
            );
            return Err(error);
        }
        let host = NonNull::new(host.cast::<AtomicU32>()).expect("the driver gave memory");
        // From here on, dropping the value frees both.
        let memory = StopMemory {
            context: cuda.context().clone(),
            device,
            host,
        };
        memory.host().store(0, Ordering::SeqCst);
        cuda.zero(DevicePtr(device), size_of::<u32>())?;
        Ok(memory)
    }

    fn host(&self) -> &AtomicU32 {
        // SAFETY: aligned memory that lives as long as `self`; host and device access it by atomics only.
        unsafe { self.host.as_ref() }
    }
}

impl Drop for StopMemory {
    fn drop(&mut self) {
        // SAFETY: the context lives; pads hold the device, and their memory is freed only after the work on
        // it.
        unsafe {
            let result = sys::cuCtxSetCurrent(self.context.cu_ctx());
            check_in_drop(result, "cuCtxSetCurrent", "a GPU");
            check_in_drop(sys::cuMemFree_v2(self.device), "cuMemFree", "a GPU");
            let host = self.host.as_ptr().cast();
            check_in_drop(sys::cuMemFreeHost(host), "cuMemFreeHost", "a GPU");
        }
    }
}

impl Cuda {
    pub(super) fn stop_memory(&self) -> Result<StopFlags> {
        let mut stop = self.device.stop.lock();
        let memory = match stop.as_ref() {
            Some(memory) => memory,
            None => stop.insert(StopMemory::new(self)?),
        };
        Ok(StopFlags {
            device: DevicePtr(memory.device),
            host: DevicePtr(memory.host.as_ptr() as u64),
        })
    }

    pub(super) fn set_stopped(&self) {
        // Without the flags there is no pad, so nothing waits.
        if let Some(memory) = self.device.stop.lock().as_ref() {
            memory.host().store(StopFlags::BY_HOST, Ordering::SeqCst);
        }
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.host_flag() != 0
    }

    fn host_flag(&self) -> u32 {
        let stop = self.device.stop.lock();
        stop.as_ref()
            .map_or(0, |memory| memory.host().load(Ordering::Acquire))
    }

    /// The flag in device memory, once there is a pad. Without one, nothing waits.
    pub(super) fn stop_flag(&self) -> Option<DevicePtr> {
        let stop = self.device.stop.lock();
        stop.as_ref().map(|memory| DevicePtr(memory.device))
    }

    /// Whether copies to peers enqueued on `stream` are skipped: a wait has failed, and by the device's own
    /// flag no signal follows. Where only the host stops waits, those that are satisfied still succeed and
    /// signals follow, so copies do too. A graph in capture records them, because it may be launched after
    /// the device has recovered.
    pub(super) fn leaves_out_copies(&self, stream: &super::CudaStream) -> Result<bool> {
        Ok(self.host_flag() == StopFlags::FAILED && !super::stream::is_capturing(self, stream)?)
    }

    pub(super) fn clear_stopped(&self, stream: &super::CudaStream) -> Result<()> {
        self.synchronize_device()?;
        let flags = self.stop_memory()?;
        if let Some(memory) = self.device.stop.lock().as_ref() {
            memory.host().store(0, Ordering::SeqCst);
        }
        // SAFETY: the flag is the device's own, and no wait is in flight.
        unsafe { self.upload(stream, flags.device, &0u32.to_ne_bytes()) }
    }
}
