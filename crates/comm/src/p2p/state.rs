//! What an endpoint, its channels and its tokens share.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex};
use warpweave_symm_mem::SignalPad;

use super::backend::TransferBackend;
use super::counts::PostCounts;
use super::role::Role;
use crate::error::{CommError, Result};
use crate::nccl::NcclComm;

/// Options of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Lanes of each pair of ranks: 1 to 1024.
    pub lanes: usize,
    /// Deadline of a wait for a peer; the backend's default if `None`.
    pub timeout: Option<Duration>,
    /// Most blocks of a transfer by [`TransferMethod::Sm`](super::TransferMethod::Sm) or
    /// [`TransferMethod::Tma`](super::TransferMethod::Tma); enough to fill a link if `None`.
    pub max_blocks: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            lanes: 1,
            timeout: None,
            max_blocks: None,
        }
    }
}

/// The endpoint itself, which channels and tokens keep alive.
pub(super) struct Shared<B: TransferBackend> {
    pub backend: B,
    pub pad: SignalPad<B>,
    pub rank: usize,
    pub world: usize,
    pub options: Options,
    pub nccl: OnceLock<ReentrantMutex<NcclComm>>,
    pub state: Mutex<EndpointState>,
}

/// The post counts of all lanes, and the endpoint's generation: each recovery starts a new one.
pub(super) struct EndpointState {
    pub generation: u64,
    counts: Vec<PostCounts>,
    lanes: usize,
}

/// Which post counts. NCCL's transfers are counted separately, since no signal of the pad ends them.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferKey {
    pub peer: usize,
    pub lane: usize,
    pub role: Role,
    pub by_nccl: bool,
}

impl EndpointState {
    pub fn new(world: usize, lanes: usize) -> Self {
        EndpointState {
            generation: 0,
            counts: vec![PostCounts::default(); world * lanes * Role::ALL.len() * 2],
            lanes,
        }
    }

    pub fn counts(&mut self, of: TransferKey) -> &mut PostCounts {
        let line = (of.peer * self.lanes + of.lane) * Role::ALL.len() + of.role as usize;
        &mut self.counts[2 * line + usize::from(of.by_nccl)]
    }

    /// How many signals of the peer to wait for, in a capture or not, until post `index` has completed.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if a wait in a capture would cover a post outside captures.
    pub fn due(&mut self, of: TransferKey, index: u64, captured: bool) -> Result<u64> {
        let counts = self.counts(of);
        let due = counts.due(index);
        match counts.pending_eager() {
            Some(eager) if captured && due > 0 => Err(CommError::InvalidArgument {
                what: "wait in a capture",
                why: format!(
                    "it would also wait for {} number {eager} with rank {} on lane {}, which was posted \
                     outside the capture: wait for that before the capture",
                    of.role.name(),
                    of.peer,
                    of.lane
                ),
            }),
            _ => Ok(due),
        }
    }
}

impl<B: TransferBackend> fmt::Debug for Shared<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PointToPoint")
            .field("name", &self.pad.name())
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<B: TransferBackend> Shared<B> {
    /// Makes `stream` wait for the next `due` signals of the peer. The side that copies, and NCCL, wait for
    /// their stream alone.
    pub fn enqueue_waits(
        &self,
        stream: &B::Stream,
        of: TransferKey,
        due: u64,
        state: &mut EndpointState,
    ) -> Result<()> {
        for _ in 0..due {
            if !of.role.is_active() && !of.by_nccl {
                let slot = of.role.awaited().slot(of.lane);
                // SAFETY: the key was checked when it was posted; the caller has ordered the streams of the
                // lane.
                unsafe {
                    self.backend
                        .wait(stream, &self.pad.view(), slot, &[of.peer], 0)?
                };
            }
            state.counts(of).wait();
        }
        Ok(())
    }
}
