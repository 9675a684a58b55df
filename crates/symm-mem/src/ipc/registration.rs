//! A registered range: every rank's memory, accessible from this rank.

use std::sync::Arc;

use super::AllocationIdentity;
use crate::backend::{Backend, DevicePtr, Mapping, Memory};
use crate::error::{Error, Result};

/// A peer's allocation, opened once for all registered ranges in it.
#[derive(Debug)]
pub(super) struct Opened<B: Backend> {
    pub memory: B::PeerMemory,
}

/// The same number of bytes of each rank's own memory, readable and writable by all ranks.
///
/// Using it exchanges nothing. While any rank holds it, no rank closes the memory. It does not keep the
/// memory itself alive: each rank guarantees that for its own range until the registration has been
/// [released](super::IpcCache::release) on all ranks or the cache is closed.
pub struct Registration<B: Backend> {
    pub(super) backend: B,
    pub(super) rank: usize,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
    pub(super) identity: AllocationIdentity,
    pub(super) addresses: Vec<DevicePtr>,
    pub(super) table: B::Memory,
    pub(super) _opened: Vec<Arc<Opened<B>>>,
}

impl<B: Backend> Registration<B> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.addresses.len()
    }

    /// Bytes on each rank.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The largest power of two, at most 256, that divides the addresses of all ranks' ranges. The same on
    /// all ranks.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// This rank's own range, as it was registered.
    pub fn local(&self) -> DevicePtr {
        self.addresses[self.rank]
    }

    /// The range of `rank`, as mapped here.
    ///
    /// # Panics
    /// If `rank` is not below [`Registration::world`].
    pub fn peer(&self, rank: usize) -> DevicePtr {
        self.addresses[rank]
    }

    /// The ranges of all ranks, as mapped here.
    pub fn addresses(&self) -> &[DevicePtr] {
        &self.addresses
    }

    /// Device address of a table of `world` addresses (u64), one for each rank's range.
    pub fn peer_table(&self) -> DevicePtr {
        self.table.address()
    }

    /// The allocation that contains this rank's range.
    pub fn identity(&self) -> AllocationIdentity {
        self.identity
    }

    /// `bytes` at `offset` of the range of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range or the rank is out of bounds.
    pub fn range(&self, rank: usize, offset: usize, bytes: usize) -> Result<DevicePtr> {
        if rank >= self.world() || offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(Error::InvalidArgument {
                what: "range of registered memory",
                why: format!(
                    "{bytes} bytes at {offset} of rank {rank} in {} bytes on {} ranks",
                    self.bytes,
                    self.world()
                ),
            });
        }
        Ok(self.peer(rank).add(offset))
    }

    /// Checks that this rank's range still belongs to the allocation that was registered. Asks the driver,
    /// not the peers: each rank checks its own range.
    ///
    /// # Errors
    /// [`Error::Stale`] if it was freed, even if its address is in use again.
    pub fn check_current(&self) -> Result<()> {
        let now = match self.backend.identity(self.local()) {
            Ok(now) if now == self.identity => return Ok(()),
            Ok(now) => format!("another allocation of {} bytes is there", now.bytes),
            Err(error) => error.to_string(),
        };
        Err(Error::Stale {
            address: self.local().0,
            now,
        })
    }

    /// True if [`Registration::check_current`] succeeds.
    pub fn is_current(&self) -> bool {
        self.check_current().is_ok()
    }
}

impl<B: Backend> std::fmt::Debug for Registration<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("rank", &self.rank)
            .field("bytes", &self.bytes)
            .field("identity", &self.identity)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> Opened<B> {
    pub fn at(&self, offset: usize) -> DevicePtr {
        self.memory.address().add(offset)
    }
}
