//! Opening another rank's memory: through its memory file, or directly if the ranks are threads of one
//! process.

use std::os::fd::OwnedFd;

use super::Host;
use super::memory::HostMapping;
use super::pointer;
use super::segment::{HostSegment, file_bytes};
use crate::backend::{DevicePtr, Mapping};
use crate::error::{Error, Result};
use crate::ipc::{ExportedMemory, MemoryHandle};

/// A peer's allocation.
#[derive(Debug)]
pub struct HostPeerMemory(Reached);

#[derive(Debug)]
enum Reached {
    /// Mapped from its file.
    Mapped(HostMapping, usize),
    /// In this process.
    Own(DevicePtr, usize),
}

impl HostPeerMemory {
    pub(super) fn import(
        device: &Host,
        handle: &MemoryHandle,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Self> {
        let (MemoryHandle::Descriptor, Some(fd)) = (handle, fd) else {
            return Err(handle.refused());
        };
        let segment = HostSegment::import(fd, file_bytes(bytes)?)?;
        let mapping = HostMapping::new(device, &[&segment])?;
        Ok(HostPeerMemory(Reached::Mapped(mapping, bytes)))
    }

    pub(super) fn reach(base: DevicePtr, bytes: usize) -> Result<Self> {
        pointer::identity(base)?.offset(base, bytes)?;
        Ok(HostPeerMemory(Reached::Own(base, bytes)))
    }
}

impl Mapping for HostPeerMemory {
    fn address(&self) -> DevicePtr {
        match &self.0 {
            Reached::Mapped(mapping, _) => mapping.address(),
            Reached::Own(base, _) => *base,
        }
    }

    fn bytes(&self) -> usize {
        match self.0 {
            Reached::Mapped(_, bytes) | Reached::Own(_, bytes) => bytes,
        }
    }
}

pub(super) fn export(at: DevicePtr) -> Result<ExportedMemory> {
    Ok(match pointer::file(at)? {
        Some(file) => ExportedMemory {
            handle: MemoryHandle::Descriptor,
            fd: Some(file.try_clone().map_err(|e| {
                Error::io(
                    "duplicating the descriptor of an allocation (is ulimit -n reached?)",
                    e,
                )
            })?),
        },
        None => ExportedMemory {
            handle: MemoryHandle::Confined(
                "it was made while the process had too many shareable allocations; raise ulimit -n"
                    .into(),
            ),
            fd: None,
        },
    })
}
