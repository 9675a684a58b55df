//! Mapped segments and a rank's own memory.

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::Host;
use super::pointer::{self, Listed};
use super::segment::{HostSegment, file_bytes};
use crate::backend::{Backend, DevicePtr, Mapping, Memory};
use crate::error::{Error, Result};

/// Segments mapped contiguously.
#[derive(Debug)]
pub struct HostMapping {
    device: Option<Host>,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: only this mapping owns the range, and its address is handed out only as a number.
unsafe impl Send for HostMapping {}
// SAFETY: as above; `&HostMapping` gives nothing but the address and the length.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// An empty mapping at address zero.
    pub(super) fn empty() -> Self {
        HostMapping {
            device: None,
            address: null_mut(),
            bytes: 0,
        }
    }

    pub(super) fn new(device: &Host, segments: &[&HostSegment]) -> Result<Self> {
        let each = segments.first().map_or(0, |s| s.bytes);
        if each == 0 || segments.iter().any(|s| s.bytes != each) {
            return Err(Error::InvalidArgument {
                what: "segments",
                why: "a mapping needs one or more segments of the same size".into(),
            });
        }
        let bytes = each * segments.len();
        let refused = |e: rustix::io::Errno| Error::OutOfMemory {
            bytes,
            kind: "address space for shared",
            device: "host".into(),
            cause: e.to_string(),
        };
        let shared = |address, segment: &HostSegment, flags| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the address is the kernel's choice, or in a reservation below that nothing else uses.
            unsafe {
                mmap(
                    address,
                    each,
                    access,
                    flags | MapFlags::SHARED,
                    &segment.fd,
                    0,
                )
            }
        };
        let mapped = |address| HostMapping {
            device: Some(device.clone()),
            address,
            bytes,
        };
        if let [segment] = segments {
            let address = shared(null_mut(), segment, MapFlags::empty());
            return Ok(mapped(address.map_err(refused)?));
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new reservation at an address of the kernel's choice touches no existing memory.
        let address = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::empty(), flags) };
        let mapping = mapped(address.map_err(refused)?);
        for (i, segment) in segments.iter().enumerate() {
            let place = mapping.address.wrapping_byte_add(i * each);
            shared(place, segment, MapFlags::FIXED).map_err(refused)?;
        }
        Ok(mapping)
    }
}

impl HostMapping {
    /// Zeroed memory that peers cannot map.
    fn anonymous(device: &Host, bytes: usize) -> Result<Self> {
        // SAFETY: new memory at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::OutOfMemory {
            bytes,
            kind: "host",
            device: "host".into(),
            cause: e.to_string(),
        })?;
        Ok(HostMapping {
            device: Some(device.clone()),
            address,
            bytes,
        })
    }
}

impl Mapping for HostMapping {
    fn address(&self) -> DevicePtr {
        DevicePtr(self.address as u64)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl HostMapping {
    /// Unmaps the range if all streams are idle. Otherwise it stays, and so does the device, whose stop flag
    /// a stuck wait reads and writes.
    fn release(&mut self, idle: bool) {
        if !idle {
            std::mem::forget(self.device.take());
            tracing::error!(
                bytes = self.bytes,
                "a stream is stuck: leaving its mapping in place"
            );
            return;
        }
        // SAFETY: the range is this mapping's own and the streams that could touch it are idle.
        if let Err(error) = unsafe { munmap(self.address, self.bytes) } {
            tracing::error!(%error, "unmapping shared memory");
        }
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        let Some(device) = &self.device else { return };
        let idle = device.0.streams.quiesce(device.timeout());
        self.release(idle);
    }
}

/// At most one in this many of the process's descriptors is used for shareable allocations. Further ones have
/// no file.
const FILES_SHARE: u64 = 4;

/// A rank's allocation, in a memory file of its own, so that peers can open it once it is registered.
#[derive(Debug)]
pub struct HostMemory {
    // Unlisted before the address can be reused.
    _listed: Listed,
    mapping: HostMapping,
    bytes: usize,
}

impl HostMemory {
    pub(super) fn new(device: &Host, bytes: usize) -> Result<Self> {
        let refused = |cause: String| Error::OutOfMemory {
            bytes,
            kind: "host",
            device: "host".into(),
            cause,
        };
        let rounded = file_bytes(bytes).map_err(|e| refused(e.to_string()))?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let shareable = limit.is_none_or(|limit| (pointer::files() as u64) < limit / FILES_SHARE);
        let segment = match shareable.then(|| HostSegment::create(rounded)) {
            Some(Ok(segment)) => Some(segment),
            // For example no descriptors left: the memory is still available, but not to peers.
            Some(Err(Error::Io { .. })) | None => None,
            Some(Err(error)) => return Err(error),
        };
        let (mapping, file) = match segment {
            Some(segment) => (HostMapping::new(device, &[&segment])?, Some(segment.fd)),
            None => (HostMapping::anonymous(device, rounded)?, None),
        };
        Ok(HostMemory {
            _listed: Listed::new(mapping.address(), bytes.max(1), file),
            mapping,
            bytes,
        })
    }
}

impl Memory for HostMemory {
    fn address(&self) -> DevicePtr {
        self.mapping.address()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_mapping_that_stays_keeps_its_device() {
        let device = Host::new();
        let inner = Arc::downgrade(&device.0);
        let mut mapping = HostMapping::anonymous(&device, 4096).unwrap();
        mapping.release(false);
        drop((mapping, device));
        // A wait that is stuck still reads the stop flag.
        assert!(inner.upgrade().is_some());
    }
}
