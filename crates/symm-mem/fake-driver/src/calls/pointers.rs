//! Attributes of addresses.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute as A, CUresult as R,
};

use super::memory::pool;
use super::put;
use crate::journal::{Outcome, refuse};
use crate::state::space::{By, Region};
use crate::state::{Driver, lock};

/// Writes one attribute of memory.
///
/// # Safety
/// `to` is null or valid for a write of the attribute's type.
unsafe fn answer(driver: &Driver, region: &Region, attribute: A, to: *mut c_void) -> Outcome {
    let context = match region.by {
        By::Map { .. } => 0,
        By::Alloc { context } | By::Pool { context } | By::Open { context, .. } => context,
    };
    let on = region.object.label.device;
    let device = driver.contexts.get(&context).map_or(on, |c| c.device);
    // SAFETY: the caller's obligation.
    unsafe {
        match attribute {
            A::CU_POINTER_ATTRIBUTE_CONTEXT => put(to.cast(), context as CUcontext),
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                put(to.cast(), CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint)
            }
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID => put(to.cast::<c_ulonglong>(), region.id),
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(to.cast::<c_int>(), device),
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(to.cast(), region.base),
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(to.cast(), region.bytes),
            A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
                let pooled = matches!(region.by, By::Pool { .. });
                let none = std::ptr::null_mut();
                put(to.cast(), if pooled { pool(on) } else { none })
            }
            A::CU_POINTER_ATTRIBUTE_IS_MANAGED => put(to.cast::<c_uint>(), 0),
            A::CU_POINTER_ATTRIBUTE_MAPPED => put(to.cast::<c_uint>(), 1),
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                let capable = matches!(region.by, By::Alloc { .. });
                put(to.cast::<c_uint>(), capable.into())
            }
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
                put(to.cast::<c_ulonglong>(), region.object.label.types.into())
            }
            A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => put(to.cast::<c_uint>(), 0),
            other => refuse(
                R::CUDA_ERROR_NOT_SUPPORTED,
                format!("the attribute {other:?}"),
            ),
        }
    }
}

fn region(driver: &Driver, address: u64) -> Outcome<&Region> {
    match driver.space.find(address) {
        Some(region) => Ok(region),
        None => refuse(
            R::CUDA_ERROR_INVALID_VALUE,
            format!("{address:#x} is no memory of this driver"),
        ),
    }
}

calls! {
    fn cuPointerGetAttribute(to: *mut c_void, attribute: A, address: CUdeviceptr) {
        let driver = lock();
        // SAFETY: the caller's obligation, here and below.
        unsafe { answer(&driver, region(&driver, address)?, attribute, to) }
    }

    fn cuPointerGetAttributes(count: c_uint, which: *mut A, to: *mut *mut c_void, address: CUdeviceptr) {
        let driver = lock();
        let region = region(&driver, address)?;
        for i in 0..count as usize {
            // SAFETY: as above: arrays of `count`.
            unsafe { answer(&driver, region, *which.add(i), *to.add(i))? };
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: *const c_void, attribute: A, address: CUdeviceptr) {
        region(&lock(), address)?;
        match attribute {
            A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => Ok(()),
            other => refuse(R::CUDA_ERROR_INVALID_VALUE, format!("{other:?} cannot be set")),
        }
    }

    fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) {
        let driver = lock();
        driver.context()?;
        let region = match region(&driver, address) {
            Ok(region) => region,
            Err(refusal) => return refuse(R::CUDA_ERROR_NOT_FOUND, refusal.why),
        };
        // SAFETY: as above; either may be null.
        unsafe {
            if !base.is_null() {
                put(base, region.base)?;
            }
            if !bytes.is_null() {
                put(bytes, region.bytes)?;
            }
        }
        Ok(())
    }
}
