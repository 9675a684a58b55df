//! The driver's multicast object. Every call takes an [`Allowed`], which only the guard gives.

use std::ffi::{c_uint, c_ulonglong};
use std::os::fd::OwnedFd;

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::function::driver_functions;
use super::memory::CudaMapping;
use super::segment::{CudaSegment, DESCRIPTOR, export_handle, import_handle};
use crate::backend::Support;
use crate::error::{Error, Result};
use crate::multicast::{Allowed, guard_process, guarded};

/// A multicast object that this device has joined or will join.
#[derive(Debug)]
pub struct CudaMulticast {
    handle: sys::CUmemGenericAllocationHandle,
    bytes: usize,
    bound: Mutex<bool>,
    cuda: Cuda,
    allowed: Allowed,
}

/// Whether the device, the driver and the guard allow multicast. The guard comes first: if it refuses, the
/// device is not queried.
pub(super) fn support(device: impl FnOnce() -> Result<Support>) -> Result<Support> {
    guarded(|| match missing() {
        Some(error) => Ok(Support::No(error.to_string())),
        None => device(),
    })
}

fn allowed() -> Result<Allowed> {
    guard_process().map_err(|why| Error::Unavailable {
        what: "multicast".into(),
        why,
    })
}

/// `CUmulticastObjectProp`, which the bindings have since CUDA 12.1.
#[repr(C)]
struct Properties {
    devices: c_uint,
    bytes: usize,
    handle_types: c_ulonglong,
    flags: c_ulonglong,
}

fn properties(bytes: usize, world: usize) -> Properties {
    Properties {
        devices: world as u32,
        bytes,
        handle_types: DESCRIPTOR.0.into(),
        flags: 0,
    }
}

/// `CU_MULTICAST_GRANULARITY_MINIMUM`.
const MINIMUM: c_uint = 0;

type Handle = sys::CUmemGenericAllocationHandle;

driver_functions! {
    GRANULARITY = c"cuMulticastGetGranularity"(*mut usize, *const Properties, c_uint) since "12.1";
    CREATE = c"cuMulticastCreate"(*mut Handle, *const Properties) since "12.1";
    ADD_DEVICE = c"cuMulticastAddDevice"(Handle, sys::CUdevice) since "12.1";
    BIND = c"cuMulticastBindMem"(Handle, usize, Handle, usize, usize, c_ulonglong) since "12.1";
    UNBIND = c"cuMulticastUnbind"(Handle, sys::CUdevice, usize, usize) since "12.1";
}

/// Why multicast is missing, if the driver lacks one of its functions.
fn missing() -> Option<Error> {
    let first = GRANULARITY.get().err();
    first
        .or_else(|| CREATE.get().err())
        .or_else(|| ADD_DEVICE.get().err())
        .or_else(|| BIND.get().err())
        .or_else(|| UNBIND.get().err())
}

/// The granularity of binding; 1 without multicast.
pub(super) fn granularity(cuda: &Cuda) -> Result<usize> {
    if !cuda.device.info.multicast.is_yes() {
        return Ok(1);
    }
    let Allowed { .. } = allowed()?;
    let mut bytes = 0;
    // SAFETY: both arguments live through the call. Any number of devices gives the same answer; two is the
    // least.
    let result = unsafe { GRANULARITY.get()?(&mut bytes, &properties(1 << 21, 2), MINIMUM) };
    check(result, "cuMulticastGetGranularity", cuda.name())?;
    Ok(bytes)
}

impl CudaMulticast {
    pub(super) fn create(cuda: &Cuda, bytes: usize, world: usize) -> Result<Self> {
        let allowed = allowed()?;
        cuda.device.info.multicast.require("multicast")?;
        cuda.bind()?;
        let mut handle = 0;
        // SAFETY: both arguments live through the call; the guard has allowed it.
        let result = unsafe { CREATE.get()?(&mut handle, &properties(bytes, world)) };
        check(result, "cuMulticastCreate", cuda.name())?;
        Ok(Self::own(cuda, handle, bytes, allowed))
    }

    pub(super) fn import(cuda: &Cuda, fd: &OwnedFd, bytes: usize) -> Result<Self> {
        let allowed = allowed()?;
        cuda.device.info.multicast.require("multicast")?;
        cuda.bind()?;
        Ok(Self::own(cuda, import_handle(cuda, fd)?, bytes, allowed))
    }

    fn own(
        cuda: &Cuda,
        handle: sys::CUmemGenericAllocationHandle,
        bytes: usize,
        allowed: Allowed,
    ) -> Self {
        CudaMulticast {
            handle,
            bytes,
            bound: Mutex::new(false),
            cuda: cuda.clone(),
            allowed,
        }
    }

    pub(super) fn export(&self) -> Result<OwnedFd> {
        let Allowed { .. } = self.allowed;
        export_handle(&self.cuda, self.handle)
    }

    pub(super) fn join(&self) -> Result<()> {
        let Allowed { .. } = self.allowed;
        self.cuda.bind()?;
        // SAFETY: the object lives; the guard has allowed it.
        let result = unsafe { ADD_DEVICE.get()?(self.handle, self.cuda.context().cu_device()) };
        check(result, "cuMulticastAddDevice", self.cuda.name())
    }

    pub(super) fn bind(&self, segment: &CudaSegment) -> Result<()> {
        let Allowed { .. } = self.allowed;
        if segment.bytes != self.bytes {
            return Err(Error::InvalidArgument {
                what: "segment bound to a multicast object",
                why: format!("it has {} bytes, the object {}", segment.bytes, self.bytes),
            });
        }
        self.cuda.bind()?;
        // SAFETY: object and segment live, and both have `bytes`; the guard has allowed it.
        let result = unsafe { BIND.get()?(self.handle, 0, segment.handle, 0, self.bytes, 0) };
        check(result, "cuMulticastBindMem", self.cuda.name())?;
        *self.bound.lock() = true;
        Ok(())
    }

    pub(super) fn map(&self) -> Result<CudaMapping> {
        let Allowed { .. } = self.allowed;
        CudaMapping::of_handles(&self.cuda, &[self.handle], self.bytes)
    }
}

impl Drop for CudaMulticast {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        let device = self.cuda.name();
        // If the function is missing, nothing is bound: see `support`.
        if let (true, Ok(unbind)) = (*self.bound.lock(), UNBIND.get()) {
            // SAFETY: bound once, with this offset and size; its mapping is gone, since it is dropped first.
            let result =
                unsafe { unbind(self.handle, self.cuda.context().cu_device(), 0, self.bytes) };
            check_in_drop(result, "cuMulticastUnbind", device);
        }
        // SAFETY: created or imported once and released once.
        let result = unsafe { sys::cuMemRelease(self.handle) };
        check_in_drop(result, "cuMemRelease", device);
    }
}
