//! The memory of a bound plan.

use std::sync::Arc;

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{Backend, DevicePtr, Exchange, Memory, SymmetricBuffer};

use super::error::Result;
use crate::plan::{BufferId, Placement, Plan};

#[derive(Debug)]
enum Storage<B: Backend> {
    Local(B::Memory),
    Symmetric(SymmetricBuffer<B>),
    /// The object goes before the memory that is bound to it.
    Multicast(MulticastBuffer<B>, SymmetricBuffer<B>),
}

/// One piece of memory for each buffer of a plan.
#[derive(Debug)]
pub(crate) struct Buffers<B: Backend> {
    /// The first rank of the node, whose ranks reach each other's copies.
    first: usize,
    storage: Vec<Storage<B>>,
}

/// Memory of the local buffers, in their order; `None` for the others.
pub(super) type LocalMemory<B> = Vec<Option<<B as Backend>::Memory>>;

/// Allocates the local buffers. Not collective.
pub(super) fn allocate_local<B: Backend>(backend: &B, plan: &Plan) -> Result<LocalMemory<B>> {
    let memory = plan.buffers.iter().map(|buffer| {
        let local = buffer.placement == Placement::Local;
        Ok(if local {
            Some(backend.allocate((buffer.copies() * buffer.bytes()).max(1))?)
        } else {
            None
        })
    });
    memory.collect()
}

impl<B: Backend> Buffers<B> {
    /// Allocates the shared buffers next to the local ones. Collective; `exchange` is that of the node.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        plan: &Plan,
        local: LocalMemory<B>,
    ) -> Result<Self> {
        let mut storage = Vec::with_capacity(plan.buffers.len());
        for (buffer, local) in plan.buffers.iter().zip(local) {
            let name = format!("{}.{}", plan.name, buffer.name);
            let bytes = buffer.copies() * buffer.bytes();
            if let Some(memory) = local {
                storage.push(Storage::Local(memory));
                continue;
            }
            let shared = SymmetricBuffer::new(backend, exchange, &name, bytes)?;
            storage.push(match buffer.placement {
                Placement::Multicast => {
                    Storage::Multicast(MulticastBuffer::new(backend, exchange, &shared)?, shared)
                }
                _ => Storage::Symmetric(shared),
            });
        }
        let first = plan.node_of(plan.rank).start;
        Ok(Self { first, storage })
    }

    fn symmetric(&self, id: BufferId) -> Option<&SymmetricBuffer<B>> {
        match &self.storage[id.0] {
            Storage::Local(_) => None,
            Storage::Symmetric(buffer) | Storage::Multicast(_, buffer) => Some(buffer),
        }
    }

    /// First address of the copy of `rank`, which is one of the node; this rank's own if the buffer is local.
    pub fn copy_of(&self, id: BufferId, rank: usize) -> DevicePtr {
        match &self.storage[id.0] {
            Storage::Local(memory) => memory.address(),
            Storage::Symmetric(buffer) | Storage::Multicast(_, buffer) => {
                buffer.peer(rank - self.first)
            }
        }
    }

    /// Device address of the table of the addresses of all copies of the node; null for a local buffer.
    pub fn table(&self, id: BufferId) -> DevicePtr {
        self.symmetric(id)
            .map_or(DevicePtr::NULL, SymmetricBuffer::peer_table)
    }

    /// The multicast address; null on the host backend, and for buffers without one.
    pub fn multicast(&self, id: BufferId) -> DevicePtr {
        match &self.storage[id.0] {
            Storage::Multicast(object, _) => object.address(),
            _ => DevicePtr::NULL,
        }
    }
}
