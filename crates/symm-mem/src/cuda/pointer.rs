//! Driver queries about an address: the allocation that contains it, and its kind.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUresult};

use super::Cuda;
use super::driver::check;
use crate::backend::DevicePtr;
use crate::error::{Error, Result};
use crate::ipc::AllocationIdentity;

/// A type of attribute value for which all zeros are valid.
pub(super) trait Value: Copy {
    const ZERO: Self;
}

impl Value for i32 {
    const ZERO: i32 = 0;
}

impl Value for u64 {
    const ZERO: u64 = 0;
}

/// A handle of the driver.
impl<T> Value for *mut T {
    const ZERO: *mut T = std::ptr::null_mut();
}

/// The attribute of the address `at`, or `None` if the driver does not know the address or the attribute.
///
/// # Safety
/// The driver writes this attribute as a `T`.
pub(super) unsafe fn attribute<T: Value>(
    cuda: &Cuda,
    at: DevicePtr,
    attribute: Attribute,
) -> Result<Option<T>> {
    let mut value = T::ZERO;
    // SAFETY: `value` is valid for the driver's write, as the caller guarantees.
    let result =
        unsafe { sys::cuPointerGetAttribute((&raw mut value).cast::<c_void>(), attribute, at.0) };
    match result {
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(None),
        result => check(result, "cuPointerGetAttribute", cuda.name()).map(|()| Some(value)),
    }
}

/// The kind of an allocation, which decides who can open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `cuMemAlloc`: legacy CUDA IPC opens it.
    Plain,
    /// A stream-ordered pool.
    Pooled(sys::CUmemoryPool),
    /// Virtual memory and its handle types, a bit set of `CUmemAllocationHandleType`.
    Virtual { handles: u64 },
    /// Opened from another process, or indistinguishable from that.
    Foreign,
}

/// The device that owns the memory at `at`, and the kind of memory.
pub(super) fn kind(cuda: &Cuda, at: DevicePtr) -> Result<(i32, Kind)> {
    cuda.bind()?;
    use Attribute as A;
    // SAFETY: the driver's documentation: an int.
    let device = unsafe { attribute::<i32>(cuda, at, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? };
    let device = device.ok_or_else(|| unknown(at))?;
    // SAFETY: a boolean, for which the driver writes at most an int; `value` has room for that.
    let plain =
        unsafe { attribute::<u64>(cuda, at, A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)? };
    if plain.is_some_and(is_true) {
        return Ok((device, Kind::Plain));
    }
    // SAFETY: a CUmemoryPool, null for memory outside of pools.
    let pool = unsafe {
        attribute::<sys::CUmemoryPool>(cuda, at, A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)?
    };
    if let Some(pool) = pool.filter(|pool| !pool.is_null()) {
        return Ok((device, Kind::Pooled(pool)));
    }
    let Some(retained) = Retained::of(cuda, at)? else {
        return Ok((device, Kind::Foreign));
    };
    drop(retained);
    // SAFETY: a bit set of 64 bits.
    let handles =
        unsafe { attribute::<u64>(cuda, at, A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)? };
    let handles = handles.unwrap_or(0);
    Ok((device, Kind::Virtual { handles }))
}

/// A boolean that the driver wrote to the first bytes of a zeroed u64.
fn is_true(value: u64) -> bool {
    value != 0
}

fn unknown(at: DevicePtr) -> Error {
    Error::InvalidArgument {
        what: "address",
        why: format!("{:#x} is not of a live allocation of device memory", at.0),
    }
}

pub(super) fn identity(cuda: &Cuda, at: DevicePtr) -> Result<AllocationIdentity> {
    cuda.bind()?;
    use Attribute as A;
    // SAFETY: the driver's documentation: an unsigned long long.
    let id = unsafe { attribute::<u64>(cuda, at, A::CU_POINTER_ATTRIBUTE_BUFFER_ID)? };
    // SAFETY: 64 bits.
    let block = unsafe { attribute::<u64>(cuda, at, A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID)? };
    let (Some(id), block) = (id, block.unwrap_or(0)) else {
        return Err(unknown(at));
    };
    if (id, block) == (0, 0) {
        return Err(unknown(at));
    }
    // SAFETY: an int.
    let owner = unsafe { attribute::<i32>(cuda, at, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)? };
    if owner != Some(cuda.context().cu_device()) {
        return Err(Error::InvalidArgument {
            what: "address",
            why: format!("{:#x} is not of memory of {}", at.0, cuda.name()),
        });
    }
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both are valid for writes.
    let result = unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, at.0) };
    match result {
        CUresult::CUDA_ERROR_NOT_FOUND | CUresult::CUDA_ERROR_INVALID_VALUE => {
            return Err(unknown(at));
        }
        result => check(result, "cuMemGetAddressRange", cuda.name())?,
    }
    Ok(AllocationIdentity {
        id,
        block,
        base: DevicePtr(base),
        bytes,
    })
}

/// The handle of the virtual memory mapped at an address, released on drop.
pub(super) struct Retained {
    pub handle: sys::CUmemGenericAllocationHandle,
    cuda: Cuda,
}

impl Retained {
    /// `None` if the memory is not CUDA virtual memory.
    pub fn of(cuda: &Cuda, at: DevicePtr) -> Result<Option<Self>> {
        cuda.bind()?;
        let mut handle = 0;
        // SAFETY: `handle` is valid for a write; the driver refuses addresses outside of such memory.
        let result = unsafe { sys::cuMemRetainAllocationHandle(&mut handle, at.0 as *mut c_void) };
        match result {
            CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(None),
            result => {
                check(result, "cuMemRetainAllocationHandle", cuda.name())?;
                Ok(Some(Retained {
                    handle,
                    cuda: cuda.clone(),
                }))
            }
        }
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // SAFETY: retained once and released once.
        let result = unsafe { sys::cuMemRelease(self.handle) };
        super::driver::check_in_drop(result, "cuMemRelease", self.cuda.name());
    }
}
