//! Transfers by NCCL's send and receive: the end that has the bytes sends, the other receives, and completion
//! is in stream order.

use parking_lot::ReentrantMutexGuard;

use super::backend::TransferBackend;
use super::range::MemoryRange;
use super::role::Role;
use super::state::Shared;
use crate::error::{CommError, Result};
use crate::nccl::{Element, NcclComm};

impl<B: TransferBackend> Shared<B> {
    /// Locks the communicator for this thread.
    pub(super) fn nccl(&self) -> Result<ReentrantMutexGuard<'_, NcclComm>> {
        let attached = self.nccl.get().ok_or_else(|| {
            CommError::Memory(warpweave_symm_mem::Error::Unavailable {
                what: "transfer by NCCL".into(),
                why: "no communicator is attached; see `PointToPoint::attach_nccl`".into(),
            })
        })?;
        Ok(attached.lock())
    }
}

/// Enqueues this rank's end.
///
/// # Safety
/// As [`Channel`](super::Channel) says; all ranks post in an order in which sends and receives of each pair
/// match.
pub(super) unsafe fn transfer<B: TransferBackend>(
    nccl: &NcclComm,
    stream: &B::Stream,
    role: Role,
    peer: usize,
    range: MemoryRange,
) -> Result<()> {
    let Some(stream) = B::driver_stream(stream) else {
        return Err(CommError::Memory(warpweave_symm_mem::Error::Unavailable {
            what: "transfer by NCCL".into(),
            why: "this backend has no CUDA streams".into(),
        }));
    };
    let (address, bytes) = (range.address.0, range.bytes);
    // SAFETY: the caller's obligation.
    unsafe {
        match role {
            Role::Expose | Role::Put => nccl.send(address, bytes, Element::U8, peer, stream),
            Role::Get | Role::Accept => nccl.recv(address, bytes, Element::U8, peer, stream),
        }
    }
}
