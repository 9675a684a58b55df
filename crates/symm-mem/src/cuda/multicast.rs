//! The multicast object of the driver. Every call stands behind the guard: it takes an [`Allowed`].

use std::os::fd::OwnedFd;

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::Cuda;
use super::driver::{check, check_in_drop, has_symbol};
use super::memory::CudaMapping;
use super::segment::{CudaSegment, export_handle, import_handle};
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

/// Whether the device, the driver and the guard allow multicast. The guard comes first: without its leave the device is
/// not even asked.
pub(super) fn support(device: impl FnOnce() -> Result<Support>) -> Result<Support> {
    guarded(|| {
        if !has_symbol(c"cuMulticastCreate") || !has_symbol(c"cuMulticastBindMem") {
            return Ok(Support::No("the driver is older than CUDA 12.1".into()));
        }
        device()
    })
}

fn allowed() -> Result<Allowed> {
    guard_process().map_err(|why| Error::Unavailable {
        what: "multicast".into(),
        why,
    })
}

fn properties(bytes: usize, world: usize) -> sys::CUmulticastObjectProp {
    sys::CUmulticastObjectProp {
        numDevices: world as u32,
        size: bytes,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0
            as u64,
        flags: 0,
    }
}

/// The unit of binding, 1 where there is no multicast.
pub(super) fn granularity(cuda: &Cuda) -> Result<usize> {
    if !cuda.device.info.multicast.is_yes() {
        return Ok(1);
    }
    let Allowed { .. } = allowed()?;
    let mut bytes = 0;
    // SAFETY: both arguments live through the call. Any number of devices gives the same answer; two is the least.
    let result = unsafe {
        sys::cuMulticastGetGranularity(
            &mut bytes,
            &properties(1 << 21, 2),
            sys::CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM,
        )
    };
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
        let result = unsafe { sys::cuMulticastCreate(&mut handle, &properties(bytes, world)) };
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
        let result =
            unsafe { sys::cuMulticastAddDevice(self.handle, self.cuda.context().cu_device()) };
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
        let result =
            unsafe { sys::cuMulticastBindMem(self.handle, 0, segment.handle, 0, self.bytes, 0) };
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
        if *self.bound.lock() {
            // SAFETY: bound once, with this offset and size; its mapping is gone, since it is dropped first.
            let result = unsafe {
                sys::cuMulticastUnbind(self.handle, self.cuda.context().cu_device(), 0, self.bytes)
            };
            check_in_drop(result, "cuMulticastUnbind", device);
        }
        // SAFETY: created or imported once and released once.
        let result = unsafe { sys::cuMemRelease(self.handle) };
        check_in_drop(result, "cuMemRelease", device);
    }
}
