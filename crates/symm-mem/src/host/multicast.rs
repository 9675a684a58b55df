//! The emulated multicast object. Kernels store to every mapping of the symmetric buffer; the object itself
//! only enforces the collective protocol.

use std::os::fd::OwnedFd;

use super::memory::HostMapping;
use super::segment::HostSegment;
use crate::error::{Error, Result};

/// The emulated object: a memory file of the agreed size, shared like the real one.
#[derive(Debug)]
pub struct HostMulticast {
    object: HostSegment,
}

impl HostMulticast {
    pub(super) fn create(bytes: usize, _world: usize) -> Result<Self> {
        Ok(HostMulticast {
            object: HostSegment::create(bytes)?,
        })
    }

    pub(super) fn export(&self) -> Result<OwnedFd> {
        self.object.export()
    }

    pub(super) fn import(fd: OwnedFd, bytes: usize, _world: usize) -> Result<Self> {
        Ok(HostMulticast {
            object: HostSegment::import(fd, bytes)?,
        })
    }

    pub(super) fn join(&self) -> Result<()> {
        Ok(())
    }

    pub(super) fn bind(&self, segment: &HostSegment) -> Result<()> {
        if segment.bytes == self.object.bytes {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: "segment bound to a multicast object",
            why: format!(
                "it has {} bytes, the object {}",
                segment.bytes, self.object.bytes
            ),
        })
    }

    pub(super) fn map(&self) -> Result<HostMapping> {
        Ok(HostMapping::empty())
    }
}
