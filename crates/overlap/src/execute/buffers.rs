//! The memory of a bound plan.

use std::sync::Arc;

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{Backend, Exchange, Memory, SymmetricBuffer};

use super::addresses::Location;
use super::error::Result;
use crate::plan::{Buffer, Placement, Plan};

#[derive(Debug)]
enum Storage<B: Backend> {
    Local(B::Memory),
    Symmetric(SymmetricBuffer<B>),
    /// The object goes before the memory that is bound to it.
    Multicast(MulticastBuffer<B>, SymmetricBuffer<B>),
}

/// One piece of memory for each buffer of a plan.
#[derive(Debug)]
pub(super) struct Buffers<B: Backend> {
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
        Ok(Self { storage })
    }

    /// Where the buffers of the plan lie.
    pub fn locations(&self, plan: &Plan) -> Vec<Location> {
        let location = |(storage, buffer): (&Storage<B>, &Buffer)| {
            let location = match storage {
                Storage::Local(memory) => Location::local(memory.address()),
                Storage::Symmetric(shared) => Location::symmetric(shared),
                Storage::Multicast(object, shared) => Location {
                    multicast: object.address(),
                    ..Location::symmetric(shared)
                },
            };
            Location {
                alternate: buffer.bytes(),
                ..location
            }
        };
        let of = self.storage.iter().zip(&plan.buffers);
        of.map(location).collect()
    }
}
