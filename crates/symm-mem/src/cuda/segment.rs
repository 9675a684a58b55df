//! Segments: physical device memory, shared between processes by POSIX descriptor or fabric handle.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{self, CUresult};

use super::Cuda;
use super::driver::{check, check_in_drop};
use crate::backend::{Sharing, Support};
use crate::error::{Error, Result};
use crate::ipc::{ExportedMemory, MemoryHandle};

pub(super) const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
// By value, because the bindings have it only since CUDA 12.3.
pub(super) const FABRIC: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType(8);

/// Physical memory of one device, held by a driver handle.
#[derive(Debug)]
pub struct CudaSegment {
    pub(super) handle: sys::CUmemGenericAllocationHandle,
    pub(super) bytes: usize,
    /// For which handles it was created.
    sharing: Sharing,
    cuda: Cuda,
}

/// What to ask of the driver. Memory with fabric handles has descriptors too, as NCCL's: for multicast
/// objects and for whoever registers it with ranks of its own host.
const fn handle_types(sharing: Sharing) -> sys::CUmemAllocationHandleType {
    match sharing {
        Sharing::Descriptors => DESCRIPTOR,
        Sharing::Fabric => sys::CUmemAllocationHandleType(DESCRIPTOR.0 | FABRIC.0),
    }
}

/// Read and write access for the device of `cuda`.
pub(super) fn access(cuda: &Cuda) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: location(cuda),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// The device of `cuda` as a memory location.
fn location(cuda: &Cuda) -> sys::CUmemLocation {
    /// The layout in all versions of `cuda.h`; the bindings of CUDA 13.2 put `id` into a union.
    #[repr(C)]
    struct Location {
        kind: sys::CUmemLocationType,
        id: c_int,
    }
    let location = Location {
        kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: cuda.context().cu_device(),
    };
    // SAFETY: the same fields in the same places.
    unsafe { std::mem::transmute::<Location, sys::CUmemLocation>(location) }
}

fn properties(cuda: &Cuda, handles: sys::CUmemAllocationHandleType) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(cuda),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The recommended granularity of allocation. It is 2 MiB on all GPUs so far, which multicast binding accepts
/// too.
pub(super) fn granularity(cuda: &Cuda) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: both arguments live through the call.
    let result = unsafe {
        sys::cuMemGetAllocationGranularity(
            &mut bytes,
            &properties(cuda, DESCRIPTOR),
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        )
    };
    check(result, "cuMemGetAllocationGranularity", cuda.name())?;
    Ok(bytes)
}

impl CudaSegment {
    /// New memory with undefined content: see [`zeroed_segment`](super::memory::zeroed_segment).
    pub(super) fn create(cuda: &Cuda, bytes: usize, sharing: Sharing) -> Result<Self> {
        cuda.bind()?;
        let mut handle = 0;
        let properties = properties(cuda, handle_types(sharing));
        // SAFETY: both arguments live through the call.
        match unsafe { sys::cuMemCreate(&mut handle, bytes, &properties, 0) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(cuda.out_of_memory(bytes, "device")),
            result => check(result, "cuMemCreate", cuda.name())?,
        }
        Ok(CudaSegment {
            handle,
            bytes,
            sharing,
            cuda: cuda.clone(),
        })
    }

    pub(super) fn export(&self) -> Result<ExportedMemory> {
        Ok(match self.sharing {
            Sharing::Descriptors => ExportedMemory {
                handle: MemoryHandle::Descriptor,
                fd: Some(export_handle(&self.cuda, self.handle)?),
            },
            Sharing::Fabric => ExportedMemory {
                handle: MemoryHandle::Fabric(export_fabric(&self.cuda, self.handle)?),
                fd: None,
            },
        })
    }

    pub(super) fn import(cuda: &Cuda, fd: &OwnedFd, bytes: usize) -> Result<Self> {
        cuda.bind()?;
        let handle = import_handle(cuda, fd)?;
        Ok(CudaSegment {
            handle,
            bytes,
            sharing: Sharing::Descriptors,
            cuda: cuda.clone(),
        })
    }
}

impl CudaSegment {
    /// Imports a peer's memory from its fabric handle.
    pub(super) fn of_fabric(cuda: &Cuda, fabric: &[u8; 64], bytes: usize) -> Result<Self> {
        cuda.bind()?;
        let mut handle = 0;
        let bytes_of_handle = fabric.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the driver reads 64 bytes for this type of handle and writes none; `handle` is valid for a
        // write.
        let result =
            unsafe { sys::cuMemImportFromShareableHandle(&mut handle, bytes_of_handle, FABRIC) };
        check(result, "cuMemImportFromShareableHandle", cuda.name())?;
        Ok(CudaSegment {
            handle,
            bytes,
            sharing: Sharing::Fabric,
            cuda: cuda.clone(),
        })
    }

    /// Creates and exports memory with a fabric handle, only to find out whether that works: why not, if the
    /// driver refuses.
    pub(super) fn probe_fabric(cuda: &Cuda) -> Result<Support> {
        const REFUSALS: [CUresult; 4] = [
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            // Of a driver that does not know the type.
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
        ];
        let segment = CudaSegment::create(cuda, cuda.device.granularity, Sharing::Fabric);
        match segment.and_then(|segment| segment.export()) {
            Ok(_) => Ok(Support::Yes),
            Err(Error::Driver {
                call, code, name, ..
            }) if REFUSALS.iter().any(|refusal| *refusal as i32 == code) => {
                Ok(Support::No(format!(
                    "{call} failed with {name}: fabric handles need an IMEX channel \
                     (/dev/nvidia-caps-imex-channels)"
                )))
            }
            Err(error) => Err(error),
        }
    }
}

/// The fabric handle of `handle`, which was created with this handle type.
pub(super) fn export_fabric(
    cuda: &Cuda,
    handle: sys::CUmemGenericAllocationHandle,
) -> Result<[u8; 64]> {
    let mut fabric = [0u8; 64];
    // SAFETY: the driver writes 64 bytes for this type of handle.
    let result = unsafe {
        sys::cuMemExportToShareableHandle(fabric.as_mut_ptr().cast::<c_void>(), handle, FABRIC, 0)
    };
    check(result, "cuMemExportToShareableHandle", cuda.name())?;
    Ok(fabric)
}

/// A descriptor of `handle`, which was created with this handle type.
pub(super) fn export_handle(
    cuda: &Cuda,
    handle: sys::CUmemGenericAllocationHandle,
) -> Result<OwnedFd> {
    cuda.bind()?;
    let mut fd: i32 = -1;
    // SAFETY: the driver writes a descriptor, an int, for this type of handle.
    let result = unsafe {
        sys::cuMemExportToShareableHandle((&raw mut fd).cast::<c_void>(), handle, DESCRIPTOR, 0)
    };
    check(result, "cuMemExportToShareableHandle", cuda.name())?;
    // SAFETY: a new descriptor that the driver gave to this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Imports the memory of a descriptor; the caller keeps the descriptor.
pub(super) fn import_handle(
    cuda: &Cuda,
    fd: &OwnedFd,
) -> Result<sys::CUmemGenericAllocationHandle> {
    let mut handle = 0;
    // The driver takes the descriptor itself in place of a pointer.
    let descriptor = fd.as_raw_fd() as usize as *mut c_void;
    // SAFETY: `handle` is valid for a write; the driver refuses descriptors that are not its own.
    let result =
        unsafe { sys::cuMemImportFromShareableHandle(&mut handle, descriptor, DESCRIPTOR) };
    match result {
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_INVALID_HANDLE => {
            Err(Error::InvalidArgument {
                what: "descriptor of a peer's memory",
                why: "the driver does not know it; do all ranks use CUDA on one machine?".into(),
            })
        }
        result => {
            check(result, "cuMemImportFromShareableHandle", cuda.name())?;
            Ok(handle)
        }
    }
}

impl Drop for CudaSegment {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // SAFETY: created or imported once and released once; mappings keep the memory itself alive.
        let result = unsafe { sys::cuMemRelease(self.handle) };
        check_in_drop(result, "cuMemRelease", self.cuda.name());
    }
}
