//! One rank's end of all transfers over a signal pad.

use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, ReentrantMutex};
use warpweave_symm_mem::{Error, Exchange, FaultCause, SignalPad, agree};

use super::backend::TransferBackend;
use super::channel::Channel;
use super::method::TransferMethod;
use super::role::{Role, Signal};
use super::state::{EndpointState, Options, Shared, TransferKey};
use crate::error::{CommError, Result};
use crate::nccl::NcclComm;

/// One rank's end of all transfers with the ranks of a group. See the [module](super).
#[derive(Debug)]
pub struct PointToPoint<B: TransferBackend>(pub(super) Arc<Shared<B>>);

impl<B: TransferBackend> PointToPoint<B> {
    /// Makes the endpoint. Collective: all ranks give the same `name` and number of lanes.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] for a number of lanes out of range; what the allocation of a signal pad
    /// reports. An error on one rank is an error on all.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        options: Options,
    ) -> Result<Self> {
        const MOST: usize = 1024;
        let ready = match options.lanes {
            1..=MOST => backend.preload_transfers(),
            lanes => Err(CommError::InvalidArgument {
                what: "lanes",
                why: format!("an endpoint has 1 to {MOST} lanes, not {lanes}"),
            }),
        };
        agree(exchange.as_ref(), "p2p.ready", ready)?;
        let mut pad = SignalPad::new(backend, exchange, name, options.lanes * Signal::SLOTS)?;
        if let Some(timeout) = options.timeout {
            pad.set_timeout(timeout);
        }
        Ok(PointToPoint(Arc::new(Shared {
            backend: backend.clone(),
            pad,
            rank: exchange.rank(),
            world: exchange.world(),
            options,
            nccl: OnceLock::new(),
            state: Mutex::new(EndpointState::new(exchange.world(), options.lanes)),
        })))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.0.world
    }

    /// The options it was made with.
    pub fn options(&self) -> Options {
        self.0.options
    }

    /// Lets [`TransferMethod::Nccl`] use `nccl`, a communicator of the same ranks. Can be called once.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if there is one already, or it is of other ranks.
    pub fn attach_nccl(&self, nccl: NcclComm) -> Result<()> {
        let refused = |why: String| CommError::InvalidArgument {
            what: "NCCL communicator",
            why,
        };
        if (nccl.rank(), nccl.world()) != (self.rank(), self.world()) {
            return Err(refused(format!(
                "it is of rank {} of {}, and the endpoint of rank {} of {}",
                nccl.rank(),
                nccl.world(),
                self.rank(),
                self.world()
            )));
        }
        let set = self.0.nccl.set(ReentrantMutex::new(nccl));
        set.map_err(|_| refused("the endpoint has one already".into()))
    }

    /// A channel to `peer`, which may be this rank itself, on `lane` by `method`.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if there is no such peer or lane.
    pub fn channel(&self, peer: usize, lane: usize, method: TransferMethod) -> Result<Channel<B>> {
        let refused = |what, why| Err(CommError::InvalidArgument { what, why });
        if peer >= self.world() {
            return refused(
                "peer",
                format!("rank {peer} in a group of {}", self.world()),
            );
        }
        if lane >= self.0.options.lanes {
            let lanes = self.0.options.lanes;
            return refused("lane", format!("{lane} of an endpoint with {lanes}"));
        }
        Ok(Channel::new(self.0.clone(), peer, lane, method))
    }

    /// Launches the posts of `posts` by [`TransferMethod::Nccl`] as one, so that they may cross those of a
    /// peer. Without a group, two ranks that each expose before they get wait for each other forever. Posts
    /// by other methods need no group and are not affected.
    ///
    /// # Errors
    /// The first error of `posts`, or of the launch.
    pub fn group<R>(&self, posts: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.0.nccl.get() {
            Some(nccl) => nccl.lock().group(|_| posts()),
            None => posts(),
        }
    }

    /// Makes `stream` wait for everything that was posted with `peer` on `lane`, including transfers whose
    /// tokens were dropped. Waiting for a live token afterwards returns at once. `stream` is one of those
    /// that order the lane.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if there is no such peer or lane, or if `stream` is in capture and a
    /// post outside the capture has not been waited for; errors of the backend.
    pub fn wait_all(&self, stream: &B::Stream, peer: usize, lane: usize) -> Result<()> {
        self.channel(peer, lane, TransferMethod::Sm)?;
        let captured = self.0.backend.is_capturing(stream)?;
        let mut state = self.0.state.lock();
        for role in Role::ALL {
            for by_nccl in [false, true] {
                let of = TransferKey {
                    peer,
                    lane,
                    role,
                    by_nccl,
                };
                if !captured {
                    state.counts(of).settle();
                }
                let latest = state.counts(of).latest();
                let due = state.due(of, latest, captured)?;
                self.0.enqueue_waits(stream, of, due, &mut state)?;
            }
        }
        Ok(())
    }

    /// After a synchronization of `stream`: the fault that a wait recorded, if any.
    ///
    /// # Errors
    /// [`CommError::Transfer`] that names the peer, the lane and the signal; errors of the backend.
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        self.0.pad.check(stream).map_err(|error| match error {
            Error::SignalFault(cause) => {
                let (lane, signal) = Signal::of_slot(cause.slot);
                let peer = match cause.cause {
                    FaultCause::PeerGaveUp { reporter } if cause.peer == self.rank() => reporter,
                    _ => cause.peer,
                };
                CommError::Transfer {
                    lane,
                    peer,
                    signal: signal.name(),
                    cause: cause.into(),
                }
            }
            other => other.into(),
        })
    }

    /// Clears the fault and everything in flight, and brings the ranks to common epochs. Collective, with no
    /// work of any rank in flight that signals or waits, as for [`SignalPad::recover`]. Earlier tokens become
    /// void: waiting for one is an error, dropping one does nothing.
    ///
    /// # Errors
    /// Errors of the exchange and the backend.
    pub fn recover(&self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        self.0.pad.recover(stream, exchange)?;
        let mut state = self.0.state.lock();
        let generation = state.generation + 1;
        *state = EndpointState::new(self.world(), self.0.options.lanes);
        state.generation = generation;
        Ok(())
    }

    /// Frees the endpoint once all ranks have called this, with their work on it on `stream` or completed.
    ///
    /// # Errors
    /// Errors of the exchange and the backend.
    pub fn close(self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        let idle = self.0.backend.synchronize(stream);
        Ok(agree(exchange, "p2p.close", idle)?)
    }
}
