//! Memory of a rank, as mapped on this rank.

use warpweave_symm_mem::{Backend, DevicePtr, Registration, SymmetricBuffer};

use crate::error::Result;

/// `bytes` of memory of `rank`, at `address` as mapped on this rank.
///
/// A range of a symmetric buffer or of registered memory, or any other that both sides have mapped. It does
/// not keep its memory alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// The rank whose memory it is.
    pub rank: usize,
    /// Its first address, as mapped on this rank.
    pub address: DevicePtr,
    /// Its length.
    pub bytes: usize,
}

impl MemoryRange {
    /// A range that was mapped by other means.
    pub const fn new(rank: usize, address: DevicePtr, bytes: usize) -> Self {
        MemoryRange {
            rank,
            address,
            bytes,
        }
    }

    /// `bytes` at `offset` of `rank`'s memory in `buffer`.
    ///
    /// # Errors
    /// [`Memory`](crate::CommError::Memory) if the range is out of the buffer's bounds.
    pub fn of<B: Backend>(
        buffer: &SymmetricBuffer<B>,
        rank: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<Self> {
        Ok(MemoryRange::new(
            rank,
            buffer.range(rank, offset, bytes)?,
            bytes,
        ))
    }

    /// `bytes` at `offset` of `rank`'s memory in `memory`, which the ranks registered with an IPC cache.
    ///
    /// # Errors
    /// As [`MemoryRange::of`].
    pub fn registered<B: Backend>(
        memory: &Registration<B>,
        rank: usize,
        offset: usize,
        bytes: usize,
    ) -> Result<Self> {
        Ok(MemoryRange::new(
            rank,
            memory.range(rank, offset, bytes)?,
            bytes,
        ))
    }
}
