//! Segments: anonymous files in memory.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::error::{Error, Result};

/// Memory that peers can map: a memfd sealed against resizing.
#[derive(Debug)]
pub struct HostSegment {
    pub(super) fd: OwnedFd,
    pub(super) bytes: usize,
}

pub(super) fn granularity() -> usize {
    rustix::param::page_size()
}

/// Length of the memory file of an allocation of `bytes`.
pub(super) fn file_bytes(bytes: usize) -> Result<usize> {
    let rounded = bytes.max(1).checked_next_multiple_of(granularity());
    rounded.ok_or_else(|| Error::InvalidArgument {
        what: "bytes of an allocation",
        why: format!("{bytes} are beyond the address space"),
    })
}

impl HostSegment {
    pub(super) fn create(bytes: usize) -> Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(granularity()) {
            return Err(Error::InvalidArgument {
                what: "size of a segment",
                why: format!(
                    "{bytes} bytes are not a multiple of the granularity {}",
                    granularity()
                ),
            });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("warpweave", flags)
            .map_err(|e| Error::io("making a shared memory file (is ulimit -n reached?)", e))?;
        let refused = |e: rustix::io::Errno| Error::OutOfMemory {
            bytes,
            kind: "shared",
            device: "host".into(),
            cause: e.to_string(),
        };
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(refused)?;
        // If a peer shrank the file, our accesses would raise SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| Error::io("sealing a shared memory file", e))?;
        Ok(HostSegment { fd, bytes })
    }

    pub(super) fn export(&self) -> Result<OwnedFd> {
        self.fd.try_clone().map_err(|e| {
            Error::io(
                "duplicating the descriptor of a segment (is ulimit -n reached?)",
                e,
            )
        })
    }

    pub(super) fn import(fd: OwnedFd, bytes: usize) -> Result<Self> {
        let stat =
            rustix::fs::fstat(&fd).map_err(|e| Error::io("looking at a peer's segment", e))?;
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(|e| Error::io("a peer's descriptor is no shared memory file", e))?;
        if stat.st_size as u64 != bytes as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(Error::InvalidArgument {
                what: "descriptor of a peer's segment",
                why: format!(
                    "it has {} bytes where {bytes}, sealed, were agreed",
                    stat.st_size
                ),
            });
        }
        Ok(HostSegment { fd, bytes })
    }
}
