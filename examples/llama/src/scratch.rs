//! Memory for the results of a captured step, outside of its graph.
//!
//! What a capture allocates from its stream becomes nodes of the graph, which stand between kernels that could
//! follow each other early (programmatic dependent launches). A [`Scratch`] has a pool and a stream of its own
//! instead. Results are freed and taken again in the order of the calls, which is that of the one stream that
//! all kernels are on; so memory that is taken again is no longer read.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use candle_core::{CudaDevice, Error, Result};

thread_local! {
    /// What this thread's results are taken from during a capture.
    static IN_USE: RefCell<Option<Arc<Scratch>>> = const { RefCell::new(None) };
}

/// The memory of a graph, which must not be launched once this is gone.
#[derive(Debug)]
pub(crate) struct Scratch {
    pool: sys::CUmemoryPool,
    stream: Arc<CudaStream>,
}

// SAFETY: the driver's pools may be used by any thread.
unsafe impl Send for Scratch {}
// SAFETY: as above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Runs `capture`, whose results are in the returned memory.
    ///
    /// # Errors
    /// Those of `capture`; errors of the device.
    pub fn of<R, E: From<Error>>(
        device: &CudaDevice,
        capture: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, Arc<Self>), E> {
        let scratch = Arc::new(Self::new(device)?);
        IN_USE.set(Some(scratch.clone()));
        let captured = capture();
        IN_USE.set(None);
        // The memory is there when the stream that takes it has come so far.
        scratch.stream.synchronize().map_err(Error::wrap)?;
        Ok((captured?, scratch))
    }

    fn new(device: &CudaDevice) -> Result<Self> {
        let context = device.cuda_stream().context().clone();
        let stream = context.new_stream().map_err(Error::wrap)?;
        // SAFETY: integers and pointers, for which zero is a value.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = context.ordinal() as i32;
        let mut pool = std::ptr::null_mut();
        // SAFETY: both are valid, and the context is the stream's.
        unsafe { sys::cuMemPoolCreate(&mut pool, &properties) }
            .result()
            .map_err(Error::wrap)?;
        let scratch = Scratch { pool, stream };
        // The graph's launches write there although it is free.
        let mut keep = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a u64.
        unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep).cast()) }
            .result()
            .map_err(Error::wrap)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once; the driver waits for what is allocated.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}

/// Memory for `count` elements: from the pool of the capture that this thread is in, else from the device's.
///
/// # Safety
/// All of it is written before it is read, by work on the stream of `device`.
///
/// # Errors
/// Errors of the device.
pub(crate) unsafe fn alloc<T: DeviceRepr>(
    device: &CudaDevice,
    count: usize,
) -> Result<CudaSlice<T>> {
    let Some(scratch) = IN_USE.with_borrow(Clone::clone) else {
        // SAFETY: the caller's obligation.
        return unsafe { device.alloc::<T>(count) };
    };
    let mut address = 0;
    let (bytes, stream) = (count * size_of::<T>(), scratch.stream.cu_stream());
    // SAFETY: pool and stream live.
    unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, scratch.pool, stream) }
        .result()
        .map_err(Error::wrap)?;
    // SAFETY: that many elements were just allocated in the order of this stream, on which the slice frees them.
    Ok(unsafe { scratch.stream.upgrade_device_ptr::<T>(address, count) })
}
