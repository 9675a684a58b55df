//! Mapped segments and a rank's own memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::Host;
use super::segment::HostSegment;
use crate::backend::{Backend, DevicePtr, Mapping, Memory};
use crate::error::{Error, Result};

/// Segments mapped one behind the other.
#[derive(Debug)]
pub struct HostMapping {
    device: Option<Host>,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the range belongs to the mapping alone and its address is only handed out as a number.
unsafe impl Send for HostMapping {}
// SAFETY: as above; `&HostMapping` gives nothing but the address and the length.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// A mapping of nothing, at address zero.
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
        // SAFETY: a new reservation at an address of the kernel's choice touches no existing memory.
        let address = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(refused)?;
        let mapping = HostMapping {
            device: Some(device.clone()),
            address,
            bytes,
        };
        for (i, segment) in segments.iter().enumerate() {
            // SAFETY: the range lies in the reservation that was just made, which nothing else uses.
            unsafe {
                mmap(
                    address.byte_add(i * each),
                    each,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    &segment.fd,
                    0,
                )
            }
            .map_err(refused)?;
        }
        Ok(mapping)
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

impl Drop for HostMapping {
    fn drop(&mut self) {
        let Some(device) = &self.device else { return };
        if !device.0.streams.quiesce(device.timeout()) {
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

/// Memory of this rank alone.
#[derive(Debug)]
pub struct HostMemory {
    device: Host,
    address: NonNull<u8>,
    layout: Layout,
    bytes: usize,
}

// SAFETY: the allocation belongs to this value alone and its address is only handed out as a number.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `&HostMemory` gives nothing but the address and the length.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(super) fn new(device: &Host, bytes: usize) -> Result<Self> {
        let refused = |cause: &str| Error::OutOfMemory {
            bytes,
            kind: "host",
            device: "host".into(),
            cause: cause.into(),
        };
        let layout = Layout::from_size_align(bytes.max(1), 256)
            .map_err(|_| refused("larger than the address space"))?;
        // SAFETY: the layout has a size above zero.
        let address = unsafe { alloc_zeroed(layout) };
        Ok(HostMemory {
            device: device.clone(),
            address: NonNull::new(address).ok_or_else(|| refused("the allocator has no more"))?,
            layout,
            bytes,
        })
    }
}

impl Memory for HostMemory {
    fn address(&self) -> DevicePtr {
        DevicePtr(self.address.as_ptr() as u64)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if !self.device.0.streams.quiesce(self.device.timeout()) {
            tracing::error!(
                bytes = self.bytes,
                "a stream is stuck: leaving its memory in place"
            );
            return;
        }
        // SAFETY: allocated with this layout; the streams that could touch it are idle.
        unsafe { dealloc(self.address.as_ptr(), self.layout) };
    }
}
