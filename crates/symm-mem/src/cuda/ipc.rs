//! Opening memory that the user of another rank allocated.
//!
//! The driver calls, in order:
//! - plain memory: `cuIpcGetMemHandle` on the owner; `cuIpcOpenMemHandle` and finally `cuIpcCloseMemHandle`
//!   on the peer;
//! - virtual memory: `cuMemRetainAllocationHandle`, `cuMemExportToShareableHandle`, `cuMemRelease` on the
//!   owner; `cuMemImportFromShareableHandle`, `cuMemAddressReserve`, `cuMemMap`, `cuMemSetAccess`,
//!   `cuMemRelease` and finally `cuMemUnmap`, `cuMemAddressFree` on the peer;
//! - within one process: `cuDeviceCanAccessPeer`, then `cuCtxEnablePeerAccess`, `cuMemPoolSetAccess` or
//!   `cuMemSetAccess`, depending on the kind of memory. The access is never revoked: it is a setting of the
//!   process, which others may rely on.

use std::ffi::c_char;
use std::os::fd::OwnedFd;

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUresult};

use super::Cuda;
use super::device;
use super::driver::{check, check_in_drop};
use super::memory::CudaMapping;
use super::pointer::{self, Kind, Retained};
use super::segment::{CudaSegment, DESCRIPTOR, FABRIC, access, export_fabric, export_handle};
use super::stream;
use crate::backend::{DevicePtr, Mapping, Support};
use crate::error::{Error, Result};
use crate::ipc::{ExportedMemory, MemoryHandle};

/// Variable: with `0`, memory is shared by descriptors even where there are fabric handles.
const FABRIC_SWITCH: &str = "WARPWEAVE_FABRIC_HANDLES";

/// A peer's allocation that this device can access.
#[derive(Debug)]
pub struct CudaPeerMemory(Reached);

#[derive(Debug)]
enum Reached {
    Legacy(Legacy),
    Mapped(CudaMapping),
    /// In this process.
    Own(DevicePtr, usize),
}

/// Memory opened by legacy CUDA IPC.
#[derive(Debug)]
struct Legacy {
    cuda: Cuda,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl Mapping for CudaPeerMemory {
    fn address(&self) -> DevicePtr {
        match &self.0 {
            Reached::Legacy(legacy) => DevicePtr(legacy.address),
            Reached::Mapped(mapping) => mapping.address(),
            Reached::Own(base, _) => *base,
        }
    }

    fn bytes(&self) -> usize {
        match &self.0 {
            Reached::Legacy(legacy) => legacy.bytes,
            Reached::Mapped(mapping) => mapping.bytes(),
            Reached::Own(_, bytes) => *bytes,
        }
    }
}

pub(super) fn export(cuda: &Cuda, at: DevicePtr) -> Result<ExportedMemory> {
    let confined = |why: &str| MemoryHandle::Confined(why.into());
    let (_, kind) = pointer::kind(cuda, at)?;
    let mut fd = None;
    let handle = match kind {
        Kind::Plain => legacy_handle(cuda, at)?,
        Kind::Virtual { handles } if handles & DESCRIPTOR.0 as u64 != 0 => {
            fd = Some(export_handle(cuda, retained(cuda, at)?.handle)?);
            MemoryHandle::Descriptor
        }
        Kind::Virtual { handles } if handles & FABRIC.0 as u64 != 0 => fabric_handle(cuda, at)?,
        Kind::Virtual { .. } => confined(
            "it is virtual memory made without handles for other processes: give cuMemCreate \
             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR in requestedHandleTypes",
        ),
        Kind::Pooled(_) => confined(
            "it is of a stream-ordered pool (cuMemAllocAsync, cudarc's slices), which CUDA IPC cannot \
            open: allocate it with \
             `Cuda::shareable_slice`, `Backend::allocate` or cuMemAlloc, or copy it into a SymmetricBuffer",
        ),
        Kind::Foreign => confined(
            "the driver does not export it: it is another process's memory, or of a kind without handles",
        ),
    };
    Ok(ExportedMemory { handle, fd })
}

fn legacy_handle(cuda: &Cuda, at: DevicePtr) -> Result<MemoryHandle> {
    let mut handle = sys::CUipcMemHandle_st { reserved: [0; 64] };
    // SAFETY: `handle` is valid for a write.
    let result = unsafe { sys::cuIpcGetMemHandle(&mut handle, at.0) };
    check(result, "cuIpcGetMemHandle", cuda.name())?;
    Ok(MemoryHandle::Legacy(handle.reserved.map(|c| c as u8)))
}

fn retained(cuda: &Cuda, at: DevicePtr) -> Result<Retained> {
    Retained::of(cuda, at)?.ok_or_else(|| Error::InvalidArgument {
        what: "address",
        why: format!("{:#x} has no virtual memory any more", at.0),
    })
}

fn fabric_handle(cuda: &Cuda, at: DevicePtr) -> Result<MemoryHandle> {
    cuda.fabric_support()?
        .require("sharing by fabric handles")?;
    let handle = export_fabric(cuda, retained(cuda, at)?.handle)?;
    Ok(MemoryHandle::Fabric(handle))
}

impl CudaPeerMemory {
    pub(super) fn import(
        cuda: &Cuda,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self> {
        cuda.bind()?;
        let mapped = |segment: CudaSegment| CudaMapping::new(cuda, &[&segment]);
        Ok(CudaPeerMemory(match (handle, fd) {
            (MemoryHandle::Legacy(handle), _) => {
                Reached::Legacy(Legacy::open(cuda, handle, bytes)?)
            }
            (MemoryHandle::Descriptor, Some(fd)) => {
                Reached::Mapped(mapped(CudaSegment::import(cuda, &fd, bytes)?)?)
            }
            (MemoryHandle::Fabric(handle), _) => {
                cuda.fabric_support()?.require("opening fabric handles")?;
                Reached::Mapped(mapped(CudaSegment::of_fabric(cuda, handle, bytes)?)?)
            }
            (handle, _) => return Err(handle.refused()),
        }))
    }

    /// Makes memory of this process that another device, or another part of the program, owns accessible.
    pub(super) fn reach(cuda: &Cuda, base: DevicePtr, bytes: usize) -> Result<Self> {
        let (owner, kind) = pointer::kind(cuda, base)?;
        let own = cuda.context().cu_device();
        if owner != own {
            let mut reachable = 0;
            // SAFETY: `reachable` is valid for a write.
            let result = unsafe { sys::cuDeviceCanAccessPeer(&mut reachable, own, owner) };
            check(result, "cuDeviceCanAccessPeer", cuda.name())?;
            if reachable == 0 {
                return Err(no_peer_access(cuda, owner, "the driver has no path to it"));
            }
            grant(cuda, kind, base, bytes, owner)?;
        }
        Ok(CudaPeerMemory(Reached::Own(base, bytes)))
    }
}

/// Gives this device access to memory of the device `owner` in this process.
fn grant(cuda: &Cuda, kind: Kind, base: DevicePtr, bytes: usize, owner: i32) -> Result<()> {
    let access = access(cuda);
    match kind {
        Kind::Pooled(pool) => {
            // SAFETY: the pool has live memory, so it lives; `access` outlives the call.
            let result = unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) };
            check(result, "cuMemPoolSetAccess", cuda.name())
        }
        Kind::Virtual { .. } => {
            // SAFETY: a mapped range of this process; other devices keep their access.
            let result = unsafe { sys::cuMemSetAccess(base.0, bytes, &access, 1) };
            check(result, "cuMemSetAccess", cuda.name())
        }
        Kind::Plain | Kind::Foreign => {
            // SAFETY: the driver's documentation: a CUcontext.
            let context = unsafe {
                pointer::attribute::<sys::CUcontext>(
                    cuda,
                    base,
                    Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
                )?
            };
            let context = context.filter(|context| !context.is_null());
            let Some(context) = context else {
                return Err(no_peer_access(cuda, owner, "its memory has no context"));
            };
            // SAFETY: the context has live memory, so it lives.
            match unsafe { sys::cuCtxEnablePeerAccess(context, 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                result => check(result, "cuCtxEnablePeerAccess", cuda.name()),
            }
        }
    }
}

fn no_peer_access(cuda: &Cuda, owner: i32, why: &str) -> Error {
    Error::Unavailable {
        what: format!("access from {} to device {owner}", cuda.name()),
        why: format!(
            "{why}; `nvidia-smi topo -p2p rw` shows which pairs of GPUs can reach each other"
        ),
    }
}

impl Legacy {
    fn open(cuda: &Cuda, handle: &[u8; 64], bytes: usize) -> Result<Self> {
        let handle = sys::CUipcMemHandle_st {
            reserved: handle.map(|byte| byte as c_char),
        };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: `address` is valid for a write; the driver refuses handles that are not its own.
        let result = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) };
        let why = match result {
            CUresult::CUDA_ERROR_ALREADY_MAPPED => {
                "memory that the peer has freed since is still open here under this handle: drop its \
                registrations \
                 before it is freed"
            }
            CUresult::CUDA_ERROR_INVALID_DEVICE => {
                "the peer's device is not among those that this process sees: show all of them to every rank \
                 (CUDA_VISIBLE_DEVICES)"
            }
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => {
                "the devices cannot reach each other; see `nvidia-smi topo -p2p rw`"
            }
            CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                "a process cannot open its own memory by CUDA IPC"
            }
            result => {
                check(result, "cuIpcOpenMemHandle", cuda.name())?;
                return Ok(Legacy {
                    cuda: cuda.clone(),
                    address,
                    bytes,
                });
            }
        };
        Err(Error::Unavailable {
            what: format!("a peer's memory by CUDA IPC on {}", cuda.name()),
            why: why.into(),
        })
    }
}

impl Drop for Legacy {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // Running work may touch the range; closing it then would fault the whole context.
        if !stream::wait_idle(&self.cuda) {
            tracing::error!(
                device = self.cuda.name(),
                bytes = self.bytes,
                "streams do not end: a peer's memory stays open"
            );
            return;
        }
        // SAFETY: opened once and closed once; the streams are idle.
        let result = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        check_in_drop(result, "cuIpcCloseMemHandle", self.cuda.name());
    }
}

impl Cuda {
    /// Whether memory can be shared by fabric handles. The device may support them but the system forbid
    /// them, so the first call creates and exports a granule to find out.
    pub(super) fn fabric_support(&self) -> Result<Support> {
        if let Some(known) = self.device.fabric.get() {
            return Ok(known.clone());
        }
        let support = if std::env::var(FABRIC_SWITCH).is_ok_and(|set| set.trim() == "0") {
            Support::No(format!("{FABRIC_SWITCH}=0 is set"))
        } else if !self.device.info.shareable_memory.is_yes()
            || !device::has(self.context(), device::FABRIC_HANDLES)?
        {
            Support::No("the device or its driver has no fabric handles".into())
        } else {
            let support = CudaSegment::probe_fabric(self)?;
            tracing::info!(device = self.name(), ?support, "fabric handles");
            support
        };
        Ok(self.device.fabric.get_or_init(|| support).clone())
    }
}
