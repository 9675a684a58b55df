//! The address space: reservations, mappings and access rights. A device address is the address at which this
//! process sees the same bytes.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUresult as R;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::object::{Kind, Object};
use crate::journal::{Outcome, refuse, require};

/// How memory was allocated or mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// `cuMemMap` of a handle; a bit for each device that may read and write.
    Map { handle: u64, access: u64 },
    /// `cuMemAlloc` in a context.
    Alloc { context: u64 },
    /// `cuMemAllocAsync` in a context, from the pool of its device.
    Pool { context: u64 },
    /// `cuIpcOpenMemHandle` in a context, with the number of openings.
    Open { context: u64, times: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub base: u64,
    pub bytes: usize,
    pub object: Arc<Object>,
    pub by: By,
    /// Never reused: `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
}

/// A part of a range that lies in one region.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub at: u64,
    pub bytes: usize,
    /// Its offset in the object.
    pub offset: usize,
    pub object: Arc<Object>,
}

#[derive(Debug, Default)]
pub(crate) struct Space {
    pub reservations: BTreeMap<u64, usize>,
    pub regions: BTreeMap<u64, Region>,
}

/// Reserves aligned address space without memory.
pub(crate) fn reserve(bytes: usize, alignment: usize) -> Result<u64, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let all = bytes.checked_add(alignment).ok_or(Errno::NOMEM)?;
    // SAFETY: a new mapping at an address that the system chooses.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), all, ProtFlags::empty(), flags)? };
    let start = start as usize;
    let base = start.next_multiple_of(alignment);
    for (from, to) in [(start, base), (base + bytes, start + all)] {
        if to > from {
            // SAFETY: a part of the mapping above that no other code knows.
            unsafe { rustix::mm::munmap(from as *mut _, to - from)? };
        }
    }
    Ok(base as u64)
}

/// Releases reserved address space.
pub(crate) fn unreserve(base: u64, bytes: usize) {
    // SAFETY: the callers pass what `reserve` gave, from which every region is gone.
    let _ = unsafe { rustix::mm::munmap(base as *mut _, bytes) };
}

/// Maps the first `bytes` of a file at a reserved address.
pub(crate) fn place(
    base: u64,
    bytes: usize,
    file: BorrowedFd<'_>,
    seen: bool,
) -> Result<(), Errno> {
    let access = if seen {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::empty()
    };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the callers pass a range that they reserved and in which nothing is mapped.
    unsafe { rustix::mm::mmap(base as *mut _, bytes, access, flags, file, 0)? };
    Ok(())
}

/// Unmaps what is mapped at a reserved address.
pub(crate) fn displace(base: u64, bytes: usize) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the callers pass a region that nobody may use any more.
    let _ = unsafe { rustix::mm::mmap_anonymous(base as *mut _, bytes, ProtFlags::empty(), flags) };
}

/// Gives this process access to a mapped range.
pub(crate) fn show(base: u64, bytes: usize) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: the callers pass mapped regions.
    unsafe { rustix::mm::mprotect(base as *mut _, bytes, access) }
}

impl Space {
    /// The region that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.base + region.bytes as u64).then_some(region)
    }

    /// The regions in a range that consists of whole regions without holes.
    pub fn exactly(&self, base: u64, bytes: usize) -> Outcome<Vec<u64>> {
        let end = base + bytes as u64;
        let mut at = base;
        let mut found = Vec::new();
        for (&start, region) in self.regions.range(base..end) {
            require(
                start == at && matches!(region.by, By::Map { .. }),
                R::CUDA_ERROR_INVALID_VALUE,
                format!("the range has a hole at {at:#x}"),
            )?;
            at = start + region.bytes as u64;
            found.push(start);
        }
        require(
            at == end && !found.is_empty(),
            R::CUDA_ERROR_INVALID_VALUE,
            format!("{bytes} bytes at {base:#x} are not whole mappings"),
        )?;
        Ok(found)
    }

    /// Whether anything is mapped in a range.
    pub fn is_empty(&self, base: u64, bytes: usize) -> bool {
        let end = base + bytes as u64;
        let before = self.regions.range(..end).next_back();
        before.is_none_or(|(_, r)| r.base + r.bytes as u64 <= base)
    }

    /// Splits a range by regions. All of it must be mapped and `allowed`.
    pub fn pieces(
        &self,
        address: u64,
        bytes: usize,
        allowed: impl Fn(&Region) -> bool,
    ) -> Outcome<Vec<Piece>> {
        let mut pieces = Vec::new();
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let Some(region) = self.find(at) else {
                return refuse(
                    R::CUDA_ERROR_ILLEGAL_ADDRESS,
                    format!("nothing is at {at:#x}, of {bytes} bytes at {address:#x}"),
                );
            };
            require(
                allowed(region),
                R::CUDA_ERROR_ILLEGAL_ADDRESS,
                format!("this device has no access to {at:#x}"),
            )?;
            let offset = (at - region.base) as usize;
            let part = left.min(region.bytes - offset);
            pieces.push(Piece {
                at,
                bytes: part,
                offset,
                object: region.object.clone(),
            });
            at += part as u64;
            left -= part;
        }
        Ok(pieces)
    }
}

impl Piece {
    pub fn is_multicast(&self) -> bool {
        self.object.label.kind == Kind::Multicast
    }
}
