//! Legacy IPC: memory of `cuMemAlloc` for other processes.

use std::ffi::{c_char, c_uint};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle, CUresult as R};

use super::put;
use crate::journal::{refuse, require};
use crate::state::lock;
use crate::state::object::{Kind, Object};
use crate::state::space::{self, By, Region};

/// The 64 bytes of an IPC handle: the process that holds a file open, and its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pid: u32,
    fd: i32,
    serial: u64,
}

const MARK: &[u8; 8] = b"wwfakeip";

impl Ticket {
    pub fn of(object: &Object) -> Self {
        Ticket {
            pid: process::id(),
            fd: object.file().as_raw_fd(),
            serial: object.label.serial,
        }
    }

    pub fn bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(MARK);
        bytes[8..12].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.serial.to_ne_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; 64]) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk::<8>()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (fd, rest) = rest.split_first_chunk()?;
        let (serial, _) = rest.split_first_chunk()?;
        (mark == MARK).then(|| Ticket {
            pid: u32::from_ne_bytes(*pid),
            fd: i32::from_ne_bytes(*fd),
            serial: u64::from_ne_bytes(*serial),
        })
    }

    pub fn open(self) -> Option<Object> {
        Object::of_process(self.pid, self.fd, self.serial)
    }
}

calls! {
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) {
        let driver = lock();
        driver.context()?;
        let region = driver.space.find(address);
        let Some(region) = region.filter(|r| matches!(r.by, By::Alloc { .. })) else {
            return refuse(R::CUDA_ERROR_INVALID_VALUE, "legacy IPC shares memory of cuMemAlloc alone");
        };
        require(region.base == address, R::CUDA_ERROR_INVALID_VALUE, "not the base of an allocation")?;
        let reserved = Ticket::of(&region.object).bytes().map(|byte| byte as c_char);
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(handle, CUipcMemHandle { reserved }) }
    }

    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        let mut driver = lock();
        let (context, device) = driver.context().map(|(name, c)| (name, c.device))?;
        require(
            flags == CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint,
            R::CUDA_ERROR_INVALID_VALUE,
            "flags must ask for lazy peer access",
        )?;
        let ticket = Ticket::from_bytes(&handle.reserved.map(|byte| byte as u8));
        require(
            ticket.is_none_or(|t| t.pid != process::id()),
            R::CUDA_ERROR_INVALID_CONTEXT,
            "a process cannot open what it exported itself",
        )?;
        let opened = ticket.and_then(Ticket::open).filter(|o| o.label.kind == Kind::Allocated);
        let Some(object) = opened else {
            return refuse(R::CUDA_ERROR_INVALID_VALUE, "the handle is of no memory, or it was freed");
        };
        require(
            object.label.device == device || driver.machine.peer,
            R::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            "no access to the memory's device",
        )?;
        let same = |r: &&mut Region| {
            r.object.identity() == object.identity()
                && matches!(r.by, By::Open { context: of, .. } if of == context)
        };
        if let Some(region) = driver.space.regions.values_mut().find(same) {
            if let By::Open { times, .. } = &mut region.by {
                *times += 1;
            }
            // SAFETY: as above.
            return unsafe { put(address, region.base) };
        }
        object.mark_opened();
        let bytes = object.label.bytes;
        let base = match space::reserve(bytes.next_multiple_of(4096), 4096) {
            Ok(base) => base,
            Err(error) => return refuse(R::CUDA_ERROR_MAP_FAILED, error.to_string()),
        };
        if let Err(error) = space::place(base, bytes.next_multiple_of(4096), object.file(), true) {
            space::unreserve(base, bytes.next_multiple_of(4096));
            return refuse(R::CUDA_ERROR_MAP_FAILED, error.to_string());
        }
        let id = driver.name();
        let by = By::Open { context, times: 1 };
        driver.space.regions.insert(base, Region { base, bytes, object: Arc::new(object), by, id });
        // SAFETY: as above.
        unsafe { put(address, base) }
    }

    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        let mut driver = lock();
        driver.context()?;
        let bytes = driver.space.regions.get(&address).map_or(0, |r| r.bytes);
        driver.unused(address, bytes)?;
        let left = match driver.space.regions.get_mut(&address).map(|r| (&mut r.by, r.bytes)) {
            Some((By::Open { times, .. }, bytes)) => {
                *times -= 1;
                (*times == 0).then_some(bytes)
            }
            _ => {
                let why = "nothing was opened there, or it was closed before";
                return refuse(R::CUDA_ERROR_INVALID_VALUE, why);
            }
        };
        if let Some(bytes) = left {
            driver.space.regions.remove(&address);
            space::unreserve(address, bytes.next_multiple_of(4096));
        }
        Ok(())
    }
}
