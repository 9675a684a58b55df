//! A channel to one peer on one lane by one method: transfers are posted here.

use std::sync::Arc;

use parking_lot::MutexGuard;
use warpweave_symm_mem::DevicePtr;

use super::backend::{FusedTransfer, TransferBackend, TransferKernel};
use super::method::TransferMethod;
use super::range::MemoryRange;
use super::role::Role;
use super::state::{EndpointState, Shared, TransferKey};
use super::token::Token;
use crate::error::{CommError, Result};

/// A channel to one peer on one lane by one method; see
/// [`PointToPoint::channel`](super::PointToPoint::channel). Channels are cheap: make one for each use or keep
/// it.
///
/// # What the unsafe calls ask for
/// - The ranges are mapped until the work has ended, and do not overlap.
/// - Nothing writes a range that is read, and nothing touches one that is written, unless it is ordered
///   before the post or after the wait for its token. The signals order the peer's end of the transfer.
/// - What this rank does on a lane with a peer is ordered on the device.
/// - The k-th post of one end has the length of the k-th post of the other.
#[derive(Debug)]
pub struct Channel<B: TransferBackend> {
    shared: Arc<Shared<B>>,
    peer: usize,
    lane: usize,
    method: TransferMethod,
}

impl<B: TransferBackend> Clone for Channel<B> {
    fn clone(&self) -> Self {
        Channel::new(self.shared.clone(), self.peer, self.lane, self.method)
    }
}

impl<B: TransferBackend> Channel<B> {
    pub(super) fn new(
        shared: Arc<Shared<B>>,
        peer: usize,
        lane: usize,
        method: TransferMethod,
    ) -> Self {
        Channel {
            shared,
            peer,
            lane,
            method,
        }
    }

    /// The rank at the other end.
    pub fn peer(&self) -> usize {
        self.peer
    }

    /// Lets the peer read `range`, which is this rank's. The token completes when it has.
    ///
    /// # Safety
    /// As [`Channel`] says.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] for a range of another rank, [`CommError::TokenDropped`]; what the
    /// transport lacks, as [`CommError::is_unavailable`] tells; errors of the backend. After an error of
    /// the backend the ranks may be at different transfers: the peer's deadline ends its wait, and all
    /// recover.
    pub unsafe fn expose(&self, stream: &B::Stream, range: MemoryRange) -> Result<Token<B>> {
        // SAFETY: the caller's obligation.
        unsafe { self.post(stream, Role::Expose, range, None) }
    }

    /// Reads `from`, which the peer exposes, into `to`, which is this rank's and has the same length.
    ///
    /// # Safety
    /// As [`Channel`] says.
    ///
    /// # Errors
    /// As [`Channel::expose`].
    pub unsafe fn get(
        &self,
        stream: &B::Stream,
        from: MemoryRange,
        to: MemoryRange,
    ) -> Result<Token<B>> {
        // SAFETY: the caller's obligation.
        unsafe { self.post(stream, Role::Get, to, Some(from)) }
    }

    /// Lets the peer write to `range`, which is this rank's. The token completes when it has.
    ///
    /// # Safety
    /// As [`Channel`] says.
    ///
    /// # Errors
    /// As [`Channel::expose`].
    pub unsafe fn accept(&self, stream: &B::Stream, range: MemoryRange) -> Result<Token<B>> {
        // SAFETY: the caller's obligation.
        unsafe { self.post(stream, Role::Accept, range, None) }
    }

    /// Writes `from`, which is this rank's, to `to`, into which the peer accepts and which has the same
    /// length.
    ///
    /// # Safety
    /// As [`Channel`] says.
    ///
    /// # Errors
    /// As [`Channel::expose`].
    pub unsafe fn put(
        &self,
        stream: &B::Stream,
        from: MemoryRange,
        to: MemoryRange,
    ) -> Result<Token<B>> {
        // SAFETY: the caller's obligation.
        unsafe { self.post(stream, Role::Put, from, Some(to)) }
    }

    /// # Safety
    /// As [`Channel`] says.
    unsafe fn post(
        &self,
        stream: &B::Stream,
        role: Role,
        mine: MemoryRange,
        theirs: Option<MemoryRange>,
    ) -> Result<Token<B>> {
        let _span = self.span(role, mine.bytes).entered();
        self.validate(role, mine, theirs)?;
        let by_nccl = self.method == TransferMethod::Nccl;
        let of = TransferKey {
            peer: self.peer,
            lane: self.lane,
            role,
            by_nccl,
        };
        let shared = &*self.shared;
        // Before the state's lock: a group holds this lock while its thread posts.
        let nccl = by_nccl.then(|| shared.nccl()).transpose()?;
        let captured = shared.backend.is_capturing(stream)?;
        let mut state = self.open(of, captured)?;
        // SAFETY: the caller's obligation; peer, lane and lengths were checked.
        unsafe {
            match nccl {
                Some(nccl) => {
                    super::nccl::transfer::<B>(&nccl, stream, role, self.peer, mine)?;
                }
                None => self.enqueue(stream, role, mine.address, theirs, mine.bytes)?,
            }
        }
        let index = state.counts(of).post(captured);
        let generation = state.generation;
        Ok(Token::new(
            self.shared.clone(),
            of,
            index,
            generation,
            captured,
            stream.clone(),
        ))
    }

    /// Locks the state, if no token of this kind was dropped without a wait.
    fn open(&self, of: TransferKey, captured: bool) -> Result<MutexGuard<'_, EndpointState>> {
        let mut state = self.shared.state.lock();
        if !captured {
            state.counts(of).settle();
        }
        match state.counts(of).lost() {
            None => Ok(state),
            Some(index) => Err(CommError::TokenDropped {
                rank: self.shared.rank,
                peer: of.peer,
                lane: of.lane,
                what: of.role.name(),
                index,
            }),
        }
    }

    /// By any method but NCCL.
    ///
    /// # Safety
    /// As [`Channel`] says.
    unsafe fn enqueue(
        &self,
        stream: &B::Stream,
        role: Role,
        mine: DevicePtr,
        theirs: Option<MemoryRange>,
        bytes: usize,
    ) -> Result<()> {
        let Shared {
            backend, pad, rank, ..
        } = &*self.shared;
        let view = pad.view();
        let signalled = role.signalled().slot(self.lane);
        let Some(theirs) = theirs else {
            // SAFETY: peer and lane were checked, and dropping the pad's memory waits for enqueued work.
            return unsafe { backend.signal_unless_stopped(stream, &view, signalled, self.peer) };
        };
        let awaited = role.awaited().slot(self.lane);
        let (from, to) = match role {
            Role::Put => (mine, theirs.address),
            _ => (theirs.address, mine),
        };
        let engine = match self.method {
            TransferMethod::Tma => TransferKernel::Bulk,
            TransferMethod::Sm => TransferKernel::Sm,
            _ => {
                // SAFETY: the caller's obligation, who orders the streams of the lane; for the signals as
                // above.
                unsafe {
                    backend.wait(stream, &view, awaited, &[self.peer], 0)?;
                    backend.push_by_engine(stream, to, from, bytes)?;
                    return backend.signal_unless_stopped(stream, &view, signalled, self.peer);
                }
            }
        };
        let launch = FusedTransfer {
            role,
            engine,
            peer: self.peer,
            lane: self.lane,
            to,
            from,
            bytes,
            pad: view,
            awaited: pad.flag(*rank, awaited, self.peer)?,
            signalled: pad.flag(self.peer, signalled, *rank)?,
            max_blocks: self.shared.options.max_blocks,
        };
        // SAFETY: the caller's obligation for the ranges; the flags are those of the pad.
        unsafe { backend.fused_transfer(stream, &launch) }
    }

    fn validate(&self, role: Role, mine: MemoryRange, theirs: Option<MemoryRange>) -> Result<()> {
        let refused = |why| {
            Err(CommError::InvalidArgument {
                what: "range of a transfer",
                why,
            })
        };
        let rank = self.shared.rank;
        if mine.rank != rank {
            return refused(format!(
                "rank {rank} is to {} memory of its own, and this is rank {}'s",
                role.name(),
                mine.rank
            ));
        }
        match theirs {
            Some(theirs) if theirs.rank != self.peer => refused(format!(
                "the channel is to rank {}, and the other end lies on rank {}",
                self.peer, theirs.rank
            )),
            Some(theirs) if theirs.bytes != mine.bytes => refused(format!(
                "{} bytes on this rank and {} on rank {}",
                mine.bytes, theirs.bytes, self.peer
            )),
            _ => Ok(()),
        }
    }

    fn span(&self, role: Role, bytes: usize) -> tracing::Span {
        let (peer, transport) = (self.peer, self.method.name());
        match role {
            Role::Expose => tracing::info_span!("comm.expose", peer, bytes, transport),
            Role::Get => tracing::info_span!("comm.get", peer, bytes, transport),
            Role::Accept => tracing::info_span!("comm.accept", peer, bytes, transport),
            Role::Put => tracing::info_span!("comm.put", peer, bytes, transport),
        }
    }
}
