//! Mapped segments and a rank's own memory.

use cudarc::driver::sys::{self, CUresult};

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::segment::{self, CudaSegment};
use super::stream;
use crate::backend::{DevicePtr, Mapping, Memory, Sharing};
use crate::error::{Error, Result};

/// A range of the device's address space with segments mapped contiguously.
#[derive(Debug)]
pub struct CudaMapping {
    cuda: Cuda,
    address: sys::CUdeviceptr,
    bytes: usize,
    /// Mapped bytes from the start; less than `bytes` only during construction.
    mapped: usize,
    /// No other code knows the address, and work on it has ended.
    private: bool,
}

/// New physical memory, zeroed, because the driver does not guarantee zeros.
pub(super) fn zeroed_segment(cuda: &Cuda, bytes: usize, sharing: Sharing) -> Result<CudaSegment> {
    let segment = CudaSegment::create(cuda, bytes, sharing)?;
    CudaMapping::new(cuda, &[&segment])?.zero_and_unmap()?;
    Ok(segment)
}

impl CudaMapping {
    pub(super) fn new(cuda: &Cuda, segments: &[&CudaSegment]) -> Result<Self> {
        let each = segments.first().map_or(0, |s| s.bytes);
        if each == 0 || segments.iter().any(|s| s.bytes != each) {
            return Err(Error::InvalidArgument {
                what: "segments",
                why: "a mapping needs one or more segments of the same size".into(),
            });
        }
        let handles: Vec<_> = segments.iter().map(|s| s.handle).collect();
        Self::of_handles(cuda, &handles, each)
    }

    /// Maps objects of `each` bytes contiguously, readable and writable by this device.
    pub(super) fn of_handles(
        cuda: &Cuda,
        handles: &[sys::CUmemGenericAllocationHandle],
        each: usize,
    ) -> Result<Self> {
        cuda.bind()?;
        let bytes = each * handles.len();
        let mut address = 0;
        // SAFETY: `address` is valid for a write.
        match unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(cuda.out_of_memory(bytes, "address space for device"));
            }
            result => check(result, "cuMemAddressReserve", cuda.name())?,
        }
        // From here on, dropping the value undoes the previous steps.
        let mut mapping = CudaMapping {
            cuda: cuda.clone(),
            address,
            bytes,
            mapped: 0,
            private: true,
        };
        for (i, &handle) in handles.iter().enumerate() {
            // SAFETY: the range lies in the reservation, and nothing is mapped there yet.
            let result = unsafe { sys::cuMemMap(address + (i * each) as u64, each, 0, handle, 0) };
            check(result, "cuMemMap", cuda.name())?;
            mapping.mapped += each;
        }
        let access = segment::access(cuda);
        // SAFETY: the whole range was just mapped.
        let result = unsafe { sys::cuMemSetAccess(address, bytes, &access, 1) };
        if let Err(error) = check(result, "cuMemSetAccess", cuda.name()) {
            return Err(match handles.len() {
                1 => error,
                _ => Error::Unavailable {
                    what: format!("peer access from {}", cuda.name()),
                    why: format!(
                        "{error}; `nvidia-smi topo -p2p rw` shows which pairs of GPUs can reach each other"
                    ),
                },
            });
        }
        mapping.private = false;
        Ok(mapping)
    }

    /// Fills the range with zeros and unmaps it, for a mapping that no other code knows. Does not wait for
    /// other work of the device: a kernel on another stream may be waiting for a peer that waits for this
    /// call.
    pub(super) fn zero_and_unmap(mut self) -> Result<()> {
        self.cuda.zero(self.address(), self.bytes)?;
        self.private = true;
        Ok(())
    }
}

impl Mapping for CudaMapping {
    fn address(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for CudaMapping {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        let device = self.cuda.name();
        // Running work may touch the range; unmapping it then would fault the whole context.
        if !self.private && !stream::wait_idle(&self.cuda) {
            tracing::error!(
                device,
                bytes = self.bytes,
                "streams do not end: their memory stays mapped"
            );
            return;
        }
        if self.mapped > 0 {
            // SAFETY: mapped by `of_handles`, once; the device is idle.
            let result = unsafe { sys::cuMemUnmap(self.address, self.mapped) };
            check_in_drop(result, "cuMemUnmap", device);
        }
        // SAFETY: reserved by `of_handles`, with this size.
        let result = unsafe { sys::cuMemAddressFree(self.address, self.bytes) };
        check_in_drop(result, "cuMemAddressFree", device);
    }
}

/// Device memory private to this rank.
#[derive(Debug)]
pub struct CudaMemory {
    cuda: Cuda,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl CudaMemory {
    pub(super) fn new(cuda: &Cuda, bytes: usize) -> Result<Self> {
        cuda.bind()?;
        let mut address = 0;
        // SAFETY: `address` is valid for a write.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(cuda.out_of_memory(bytes, "device")),
            result => check(result, "cuMemAlloc", cuda.name())?,
        }
        let memory = CudaMemory {
            cuda: cuda.clone(),
            address,
            bytes,
        };
        cuda.zero(DevicePtr(address), bytes)?;
        Ok(memory)
    }
}

impl Memory for CudaMemory {
    fn address(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // cuMemFree waits for work that may use the memory, without a limit.
        if !stream::wait_idle(&self.cuda) {
            tracing::error!(
                device = self.cuda.name(),
                bytes = self.bytes,
                "streams do not end: memory is not freed"
            );
        } else {
            // SAFETY: allocated once and freed once.
            let result = unsafe { sys::cuMemFree_v2(self.address) };
            check_in_drop(result, "cuMemFree", self.cuda.name());
        }
    }
}
