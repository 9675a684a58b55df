//! An allocated block of the pool.

use std::sync::Arc;

use super::Shared;
use crate::backend::{Backend, DevicePtr, Memory};
use crate::error::{Error, Result};
use crate::symmetric::SymmetricBuffer;

/// Memory for blocks of one class.
#[derive(Debug)]
pub(super) struct Chunk<B: Backend> {
    /// `[blocks][world]` addresses. Dropped before the memory that they point to.
    pub table: B::Memory,
    pub buffer: SymmetricBuffer<B>,
    pub block: usize,
}

/// A chunk and a block in it. Lower ones are allocated first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub chunk: usize,
    pub block: usize,
}

/// Symmetric memory of a [`SymmetricPool`](super::SymmetricPool). Dropping it returns it to the pool: work
/// enqueued on its stream before that runs before work of its next user.
#[derive(Debug)]
pub struct PoolBuffer<B: Backend> {
    pub(super) shared: Arc<Shared<B>>,
    pub(super) chunk: Arc<Chunk<B>>,
    pub(super) place: Place,
    pub(super) bytes: usize,
    pub(super) stream: B::Stream,
}

impl<B: Backend> PoolBuffer<B> {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.chunk.buffer.rank()
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.chunk.buffer.world()
    }

    /// Bytes on each rank, as requested.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// This rank's part.
    pub fn local(&self) -> DevicePtr {
        self.peer(self.rank())
    }

    /// The part of `rank`, as mapped here.
    ///
    /// # Panics
    /// If `rank` is not below [`PoolBuffer::world`].
    pub fn peer(&self, rank: usize) -> DevicePtr {
        self.chunk.buffer.peer(rank).add(self.offset())
    }

    /// The parts of all ranks, as mapped here.
    pub fn addresses(&self) -> Vec<DevicePtr> {
        (0..self.world()).map(|rank| self.peer(rank)).collect()
    }

    /// Bytes from one rank's part to the next rank's.
    pub fn stride(&self) -> usize {
        self.chunk.buffer.stride()
    }

    /// Device address of a table of `world` addresses (u64), one for each rank's part.
    pub fn peer_table(&self) -> DevicePtr {
        let row = self.world() * size_of::<u64>();
        self.chunk.table.address().add(self.place.block * row)
    }

    /// `bytes` at `offset` of the part of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range or the rank is out of bounds.
    pub fn range(&self, rank: usize, offset: usize, bytes: usize) -> Result<DevicePtr> {
        if rank >= self.world() || offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(Error::InvalidArgument {
                what: "range of a pool's block",
                why: format!(
                    "{bytes} bytes at {offset} of rank {rank} in {} bytes on {} ranks",
                    self.bytes,
                    self.world()
                ),
            });
        }
        Ok(self.peer(rank).add(offset))
    }

    /// The symmetric buffer that contains it, for instance for its multicast object.
    pub fn symmetric(&self) -> &SymmetricBuffer<B> {
        &self.chunk.buffer
    }

    /// Its offset in each rank's part of [`PoolBuffer::symmetric`].
    pub fn offset(&self) -> usize {
        self.place.block * self.chunk.block
    }

    /// The stream that orders its use.
    pub fn stream(&self) -> &B::Stream {
        &self.stream
    }

    /// Makes `stream` order its use from now on: later work there runs after all work now on the former
    /// stream, and the block's next user runs after `stream`.
    pub fn move_to(&mut self, backend: &B, stream: &B::Stream) -> Result<()> {
        super::order(backend, &self.stream, stream)?;
        self.stream = stream.clone();
        Ok(())
    }
}

impl<B: Backend> Drop for PoolBuffer<B> {
    fn drop(&mut self) {
        self.shared.give_back(self.place, self.stream.clone());
    }
}
