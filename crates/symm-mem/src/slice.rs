//! Device memory that a caller passes to a call.

use std::marker::PhantomData;

use crate::address::DevicePtr;
use crate::backend::{Backend, Memory};
use crate::symmetric::SymmetricBuffer;

/// Device memory that a caller passes to a call: a range of this rank's, or the same range on every rank.
///
/// It is borrowed from an owner whose drop waits for enqueued work, or taken from an address, which is
/// unsafe.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    /// That of the first rank; this rank's own if the memory is local.
    first: DevicePtr,
    /// Bytes from a rank's to the next rank's; 0 if the memory is local.
    stride: usize,
    /// Bytes from the start of the memory that it is of, on every rank.
    offset: usize,
    /// This rank in the buffer, and the group of its ranks.
    rank: usize,
    group: Option<u64>,
    table: DevicePtr,
    bytes: usize,
    owner: PhantomData<&'a ()>,
}

impl<'a> DeviceSlice<'a> {
    /// All of a memory of this rank.
    pub fn of(memory: &'a impl Memory) -> Self {
        Self::local(memory.address(), memory.bytes())
    }

    /// All of a buffer that every rank has. Peers access theirs in place, so all ranks pass the same range of
    /// the same buffer to the same call.
    pub fn symmetric<B: Backend>(buffer: &'a SymmetricBuffer<B>) -> Self {
        DeviceSlice {
            first: buffer.contiguous(),
            stride: buffer.stride(),
            offset: 0,
            rank: buffer.rank(),
            group: Some(buffer.group_id()),
            table: buffer.peer_table(),
            bytes: buffer.bytes(),
            owner: PhantomData,
        }
    }

    /// `bytes` of device memory of this rank: a framework's tensor, a slice of cudarc's, memory of a
    /// stream-ordered pool.
    ///
    /// # Safety
    /// The memory stays allocated until the work of every call that is given it has ended, and of every graph
    /// that captured such a call. Memory that is freed in the order of a stream may be freed in the order of
    /// the stream of the call.
    pub const unsafe fn from_address(address: DevicePtr, bytes: usize) -> Self {
        Self::local(address, bytes)
    }

    const fn local(address: DevicePtr, bytes: usize) -> Self {
        DeviceSlice {
            first: address,
            stride: 0,
            offset: 0,
            rank: 0,
            group: None,
            table: DevicePtr::NULL,
            bytes,
            owner: PhantomData,
        }
    }

    /// `bytes` of it from `offset` on, on every rank of a symmetric one; `None` if it ends before.
    pub fn slice(self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes)? <= self.bytes;
        inside.then(|| DeviceSlice {
            first: self.first.add(offset),
            offset: self.offset + offset,
            table: if offset == 0 {
                self.table
            } else {
                DevicePtr::NULL
            },
            bytes,
            ..self
        })
    }

    /// First address of the memory of `rank` of the buffer; this rank's own, whatever `rank` is, if the
    /// memory is local.
    pub fn address(&self, rank: usize) -> DevicePtr {
        self.first.add(rank * self.stride)
    }

    /// First address of this rank's memory.
    pub fn own(&self) -> DevicePtr {
        self.address(self.rank)
    }

    /// [That](crate::Exchange::group_id) of the buffer's ranks, whom [`DeviceSlice::address`] counts; `None`
    /// if the memory is local.
    pub fn group_id(&self) -> Option<u64> {
        self.group
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether peers reach theirs.
    pub fn is_symmetric(&self) -> bool {
        self.stride > 0
    }

    /// Bytes from a rank's memory to the next rank's; 0 if the memory is local.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes from the start of the memory that it is of, on every rank of a symmetric one.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The device address of a table of the addresses of all ranks; null for local memory, and for a part of
    /// a buffer that does not begin with it.
    pub fn peer_table(&self) -> DevicePtr {
        self.table
    }
}
