//! Memory of one device, copies and fills.

use std::ffi::{c_uchar, c_uint, c_void};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemcpyAttributes, CUmemoryPool, CUresult as R, CUstream,
};

use super::put;
use crate::journal::{Outcome, fault, refuse, require};
use crate::machine::DEVICE_BYTES;
use crate::state::object::Kind;
use crate::state::space::{self, By, Region};
use crate::state::work::Work;
use crate::state::{Driver, current, lock};
use crate::work::queue;
use crate::work::run::submit;

/// Allocations are aligned to it.
const ALIGNMENT: usize = 4096;

fn allocate(bytes: usize, pooled: bool) -> Outcome<u64> {
    require(bytes > 0, R::CUDA_ERROR_INVALID_VALUE, "no bytes")?;
    let mut driver = lock();
    let (context, device) = driver.context().map(|(name, c)| (name, c.device))?;
    let by = if pooled {
        By::Pool { context }
    } else {
        By::Alloc { context }
    };
    let object = driver.memory(Kind::Allocated, device, 0, bytes)?;
    let mapped = bytes.next_multiple_of(ALIGNMENT);
    let base = match space::reserve(mapped, ALIGNMENT) {
        Ok(base) => base,
        Err(error) => return refuse(R::CUDA_ERROR_OUT_OF_MEMORY, error.to_string()),
    };
    if let Err(error) = space::place(base, mapped, object.file(), true) {
        space::unreserve(base, mapped);
        return refuse(R::CUDA_ERROR_OUT_OF_MEMORY, error.to_string());
    }
    let region = Region {
        base,
        bytes,
        object,
        by,
        id: driver.name(),
    };
    driver.space.regions.insert(base, region);
    Ok(base)
}

fn free(address: u64) -> Outcome {
    let mut driver = lock();
    match driver.space.regions.get(&address).map(|r| r.by) {
        Some(By::Alloc { context } | By::Pool { context }) => require(
            driver.contexts.contains_key(&context),
            R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            "its context is gone, and the memory with it",
        )?,
        _ => {
            return refuse(
                R::CUDA_ERROR_INVALID_VALUE,
                format!("nothing was allocated at {address:#x}, or it was freed before"),
            );
        }
    }
    let bytes = driver.space.regions[&address].bytes;
    driver.unused(address, bytes)?;
    if let Some(region) = driver.space.regions.remove(&address) {
        if region.object.is_opened_by_others() {
            fault("memory is freed that another process has opened");
        }
        let mapped = region.bytes.next_multiple_of(ALIGNMENT);
        space::unreserve(region.base, mapped);
    }
    Ok(())
}

/// Runs work on the default stream and returns when it is done.
///
/// # Safety
/// As for [`submit`].
unsafe fn now(work: Work) -> Outcome {
    let context = lock().context()?.0;
    // SAFETY: the caller's obligation.
    unsafe { submit(0, work)? };
    queue::drain((0, context))
}

/// The pool of a device.
pub(super) fn pool(device: i32) -> CUmemoryPool {
    (0x800 + device as usize) as CUmemoryPool
}

fn pool_device(driver: &Driver, handle: CUmemoryPool) -> Outcome<i32> {
    match (0..driver.machine.devices).find(|device| pool(*device) == handle) {
        Some(device) => Ok(device),
        None => refuse(R::CUDA_ERROR_INVALID_VALUE, "no such pool"),
    }
}

/// Copies `count` ranges, from the second addresses to the first.
///
/// # Safety
/// The arrays have `count` elements, and the ranges are valid for a copy.
unsafe fn batch(
    (to, from, bytes): (*mut CUdeviceptr, *mut CUdeviceptr, *mut usize),
    count: usize,
    described: bool,
    stream: u64,
) -> Outcome {
    require(
        stream > 2,
        R::CUDA_ERROR_INVALID_HANDLE,
        "a batch on a default stream",
    )?;
    lock().refuse_in_capture(stream, "cuMemcpyBatchAsync")?;
    require(
        count > 0 && described,
        R::CUDA_ERROR_INVALID_VALUE,
        "a batch has copies, and one set of attributes for all of them here",
    )?;
    for i in 0..count {
        // SAFETY: the caller's obligation.
        unsafe {
            let (to, from, bytes) = (*to.add(i), *from.add(i), *bytes.add(i));
            submit(stream, Work::Copy { to, from, bytes })?;
        }
    }
    Ok(())
}

calls! {
    of_cuda_12

    fn cuMemcpyBatchAsync(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        first: *mut usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: CUstream,
    ) {
        require(!failed.is_null(), R::CUDA_ERROR_INVALID_VALUE, "a batch of CUDA 12 says which copy failed")?;
        let described = attribute_count == 1 && !attributes.is_null() && !first.is_null();
        // SAFETY: the caller's obligation.
        unsafe { batch((to, from, bytes), count, described, stream as u64) }
    }
}

calls! {
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) {
        let made = allocate(bytes, false)?;
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(address, made) }
    }

    fn cuMemFree_v2(address: CUdeviceptr) {
        lock().context()?;
        free(address)
    }

    fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        lock().stream_context(stream as u64)?;
        let made = allocate(bytes, true)?;
        // SAFETY: as above.
        unsafe { put(address, made) }
    }

    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) {
        // In stream order.
        let context = lock().stream_context(stream as u64)?;
        queue::drain((stream as u64, context))?;
        free(address)
    }

    fn cuMemPoolSetAccess(pool: CUmemoryPool, what: *const CUmemAccessDesc, count: usize) {
        let mut driver = lock();
        let of = pool_device(&driver, pool)?;
        for i in 0..count {
            // SAFETY: as above: an array of `count`.
            let device = unsafe { (*what.add(i)).location.id };
            driver.device(device)?;
            *driver.pools.entry(of).or_default() |= 1 << device;
        }
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let driver = lock();
        let (_, context) = driver.context()?;
        let left = DEVICE_BYTES.saturating_sub(driver.taken(context.device));
        // SAFETY: as above.
        unsafe { put(free, left).and_then(|()| put(total, DEVICE_BYTES)) }
    }

    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        // SAFETY: as above.
        unsafe { submit(stream as u64, Work::Copy { to, from, bytes }) }
    }

    fn cuMemcpyBatchAsync_v2(
        to: *mut CUdeviceptr,
        from: *mut CUdeviceptr,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        first: *mut usize,
        attribute_count: usize,
        stream: CUstream,
    ) {
        let described = attribute_count == 1 && !attributes.is_null() && !first.is_null();
        // SAFETY: as above.
        unsafe { batch((to, from, bytes), count, described, stream as u64) }
    }

    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        // SAFETY: as above.
        unsafe { submit(stream as u64, Work::Copy { to, from, bytes }) }
    }

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        require(!from.is_null(), R::CUDA_ERROR_INVALID_VALUE, "a null source")?;
        let from = from as usize;
        // SAFETY: as above.
        unsafe { submit(stream as u64, Work::Upload { to, from, bytes }) }
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        require(!to.is_null(), R::CUDA_ERROR_INVALID_VALUE, "a null destination")?;
        let to = to as usize;
        // SAFETY: as above.
        unsafe { submit(stream as u64, Work::Download { to, from, bytes }) }
    }

    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) {
        require(current() != 0, R::CUDA_ERROR_INVALID_CONTEXT, "no context is current")?;
        let from = from as usize;
        // SAFETY: as above.
        unsafe { now(Work::Upload { to, from, bytes }) }
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        let to = to as usize;
        // SAFETY: as above.
        unsafe { now(Work::Download { to, from, bytes }) }
    }

    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream) {
        // SAFETY: as above.
        unsafe { submit(stream as u64, Work::Fill { to, value, bytes }) }
    }

    fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, bytes: usize) {
        // SAFETY: as above.
        unsafe { now(Work::Fill { to, value, bytes }) }
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        let made = allocate(bytes, false)?;
        // SAFETY: as above.
        unsafe { put(at, made as *mut c_void) }
    }

    fn cuMemFreeHost(at: *mut c_void) {
        free(at as u64)
    }
}
