//! One rank's end of all transfers over a signal pad.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex};
use warpweave_symm_mem::{Error, Exchange, FaultCause, SignalPad, agree};

use super::backend::TransferBackend;
use super::channel::Channel;
use super::ledger::Ledger;
use super::role::{Role, Signal};
use super::transport::Transport;
use crate::error::{CommError, Result};
use crate::nccl::NcclComm;

/// How an endpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Lanes of each pair of ranks: 1 to 1024.
    pub lanes: usize,
    /// After which a wait for a peer gives up; that of the backend if there is none.
    pub timeout: Option<Duration>,
    /// Most blocks of a transfer by [`Transport::Sm`] or [`Transport::Tma`]; what fills a link if there is none.
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

/// One rank's end of all transfers with the ranks of a group. See the [module](super).
#[derive(Debug)]
pub struct PointToPoint<B: TransferBackend>(pub(super) Arc<Shared<B>>);

/// What tokens keep alive.
pub(super) struct Shared<B: TransferBackend> {
    pub backend: B,
    pub pad: SignalPad<B>,
    pub rank: usize,
    pub world: usize,
    pub options: Options,
    pub nccl: OnceLock<ReentrantMutex<NcclComm>>,
    pub books: Mutex<Books>,
}

/// The accounts of all lanes, and which life of the endpoint they are of.
pub(super) struct Books {
    pub life: u64,
    ledgers: Vec<Ledger>,
    lanes: usize,
}

/// Whose account: NCCL's transfers have one of their own, since their ends are no signals of the pad.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub peer: usize,
    pub lane: usize,
    pub role: Role,
    pub by_nccl: bool,
}

impl Books {
    fn new(world: usize, lanes: usize) -> Self {
        Books {
            life: 0,
            ledgers: vec![Ledger::default(); world * lanes * Role::ALL.len() * 2],
            lanes,
        }
    }

    pub fn ledger(&mut self, of: Account) -> &mut Ledger {
        let line = (of.peer * self.lanes + of.lane) * Role::ALL.len() + of.role as usize;
        &mut self.ledgers[2 * line + usize::from(of.by_nccl)]
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

impl<B: TransferBackend> PointToPoint<B> {
    /// Makes the endpoint. Collective: all ranks give the same `name` and number of lanes.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] for a number of lanes out of range; what the allocation of a signal pad reports. An
    /// error on one rank is an error on all.
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
            books: Mutex::new(Books::new(exchange.world(), options.lanes)),
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

    /// As given at the start.
    pub fn options(&self) -> Options {
        self.0.options
    }

    /// Lets [`Transport::Nccl`] use `nccl`, a communicator of the same ranks. Once.
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

    /// The way to `peer`, which may be this rank itself, on `lane` by `transport`.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if there is no such peer or lane.
    pub fn channel(&self, peer: usize, lane: usize, transport: Transport) -> Result<Channel<B>> {
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
        Ok(Channel::new(self.0.clone(), peer, lane, transport))
    }

    /// Makes the posts of `posts` by [`Transport::Nccl`] one launch, so that they may cross those of a peer: without it a
    /// rank that exposes before it gets waits for its peer to get, and the peer, that does the same, for this rank. Posts
    /// by other transports need no group and are not affected.
    ///
    /// # Errors
    /// The first error of `posts`, or of the launch.
    pub fn group<R>(&self, posts: impl FnOnce() -> Result<R>) -> Result<R> {
        match self.0.nccl.get() {
            Some(nccl) => nccl.lock().group(|_| posts()),
            None => posts(),
        }
    }

    /// Makes `stream` wait for all that was posted with `peer` on `lane`, whether its tokens live or were dropped; tokens
    /// that live are through when they are waited for. `stream` is one of those that the lane is ordered on.
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if there is no such peer or lane; what the backend reports.
    pub fn settle(&self, stream: &B::Stream, peer: usize, lane: usize) -> Result<()> {
        self.channel(peer, lane, Transport::Sm)?;
        let mut books = self.0.books.lock();
        for role in Role::ALL {
            for by_nccl in [false, true] {
                let of = Account {
                    peer,
                    lane,
                    role,
                    by_nccl,
                };
                let due = books.ledger(of).outstanding();
                self.0.enqueue_waits(stream, of, due, &mut books)?;
            }
        }
        Ok(())
    }

    /// After a synchronisation of `stream`: the fault that a wait recorded, if any.
    ///
    /// # Errors
    /// [`CommError::Transfer`] that names the peer, the lane and the signal; what the backend reports.
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

    /// Clears the fault and all that was in flight, and brings the ranks to common epochs. Collective, with no work of any
    /// rank under way on the endpoint. Tokens from before are void: to wait for one is an error, to drop one is nothing.
    ///
    /// # Errors
    /// What the exchange and the backend report.
    pub fn recover(&self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        self.0.pad.recover(stream, exchange)?;
        let mut books = self.0.books.lock();
        let life = books.life + 1;
        *books = Books::new(self.world(), self.0.options.lanes);
        books.life = life;
        Ok(())
    }

    /// Lets go of the endpoint once all ranks have called this, with their work on it on `stream` or ended.
    ///
    /// # Errors
    /// What the exchange and the backend report.
    pub fn close(self, stream: &B::Stream, exchange: &dyn Exchange) -> Result<()> {
        self.0.backend.synchronize(stream)?;
        exchange.barrier("p2p.close")?;
        Ok(())
    }
}

impl<B: TransferBackend> Shared<B> {
    /// Makes `stream` wait for the next `due` signals that the account waits for. Those who copy, and NCCL, have nothing
    /// to wait for but their stream.
    pub fn enqueue_waits(
        &self,
        stream: &B::Stream,
        of: Account,
        due: u64,
        books: &mut Books,
    ) -> Result<()> {
        for _ in 0..due {
            if !of.role.is_active() && !of.by_nccl {
                let slot = of.role.awaited().slot(of.lane);
                // SAFETY: the ledger knows the peer and the lane; who posted has ordered the streams of the lane.
                unsafe {
                    self.backend
                        .wait(stream, &self.pad.view(), slot, &[of.peer], 0)?
                };
            }
            books.ledger(of).wait();
        }
        Ok(())
    }
}
