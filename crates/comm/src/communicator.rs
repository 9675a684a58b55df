//! One rank's communicator: its job, the store, the exchange, and NCCL on request.

use std::fmt::Debug;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use serde::Serialize;
use warpweave_symm_mem::{Exchange, Nodes, SubExchange};

use crate::error::{CommError, Result, agree, as_comm_error};
use crate::exchange::LocalExchange;
use crate::job::Job;
use crate::nccl::{NcclComm, NcclLibrary, NcclOptions};
use crate::store::{Store, StoreServer};

/// Most characters shown of a value that differs.
const SHOWN: usize = 512;

/// A rank of a running job, with the store and the exchange; NCCL on request.
///
/// Rank 0's communicator serves the store, so it should be dropped last: after a barrier.
pub struct Communicator {
    job: Job,
    exchange: Arc<LocalExchange>,
}

impl Communicator {
    /// Joins the job that the environment describes; see [`job`](crate::job).
    ///
    /// # Errors
    /// As [`Job::from_env`] and [`Store::join`].
    pub fn init() -> Result<Self> {
        Self::join(Job::from_env()?)
    }

    /// Joins `job`.
    ///
    /// # Errors
    /// As [`Store::join`].
    pub fn join(job: Job) -> Result<Self> {
        let _span =
            tracing::info_span!("comm.init", rank = job.rank(), world = job.world()).entered();
        let store = Store::join(&job)?;
        Ok(Self::over(job, store))
    }

    /// A job of `world` ranks that are threads of this process, for tests and small examples: each rank's
    /// communicator.
    ///
    /// # Errors
    /// As [`Store::threads`].
    pub fn threads(world: usize) -> Result<Vec<Self>> {
        let adopt = |(job, server): (Job, Option<StoreServer>)| {
            let store = Store::adopt(&job, server)?;
            Ok(Self::over(job, store))
        };
        Job::threads(world)?.into_iter().map(adopt).collect()
    }

    fn over(job: Job, store: Store) -> Self {
        Self {
            job,
            exchange: Arc::new(LocalExchange::new(
                Arc::new(store),
                "warpweave.communicator",
            )),
        }
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.job.rank()
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.job.world()
    }

    /// Rank among the ranks of this host: the index of the device to use.
    pub fn local_rank(&self) -> usize {
        self.job.local_rank()
    }

    /// The nodes of the job: which ranks share memory. Collective the first time.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn nodes(&self) -> Result<Nodes> {
        self.store().nodes()
    }

    /// The exchange among the ranks of this rank's node. All ranks use theirs at the same time: see
    /// [`SubExchange`]. Collective the first time.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn node(&self) -> Result<SubExchange> {
        let nodes = self.nodes()?;
        let ranks = nodes.ranks_of(nodes.node_of(self.rank()));
        Ok(SubExchange::new(self.exchange.clone(), ranks)?)
    }

    /// This rank's place in its job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The job's store.
    pub fn store(&self) -> &Store {
        self.exchange.store()
    }

    /// The exchange with which symmetric memory is allocated.
    pub fn exchange(&self) -> &dyn Exchange {
        self.exchange.as_ref()
    }

    /// The same exchange, shared.
    pub fn shared_exchange(&self) -> Arc<dyn Exchange> {
        self.exchange.clone()
    }

    /// Returns once the host code of all ranks has reached this call. Does not wait for work on devices.
    ///
    /// # Errors
    /// [`CommError::PeerLost`], [`CommError::PeerFailed`], [`CommError::Timeout`] naming the ranks that did
    /// not come, [`CommError::Mismatch`] when a rank is at another call.
    pub fn barrier(&self) -> Result<()> {
        self.barrier_at("barrier")
    }

    /// As [`Communicator::barrier`], under a name that errors show.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn barrier_at(&self, tag: &str) -> Result<()> {
        self.exchange
            .barrier(tag)
            .map_err(|e| as_comm_error(e, self.rank()))
    }

    /// Every rank's bytes, by rank.
    ///
    /// # Errors
    /// As [`Communicator::barrier`].
    pub fn all_gather_bytes(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.exchange
            .all_gather(tag, bytes)
            .map_err(|e| as_comm_error(e, self.rank()))
    }

    /// Checks that all ranks pass the same `value`, such as the shape of a problem. Collective.
    ///
    /// # Errors
    /// [`CommError::Disagreement`] on every rank, naming a rank that differs and both values; as
    /// [`Communicator::barrier`] besides.
    pub fn agree<T: Serialize + Debug + ?Sized>(&self, tag: &str, value: &T) -> Result<()> {
        let malformed = |rank: usize| CommError::Protocol {
            what: format!(
                "rank {rank}: a value to agree on in `{tag}` cannot be encoded or decoded"
            ),
        };
        let encoded = postcard::to_stdvec(value).map_err(|_| malformed(self.rank()))?;
        let shown: String = format!("{value:?}").chars().take(SHOWN).collect();
        let mine = postcard::to_stdvec(&(&encoded, &shown)).map_err(|_| malformed(self.rank()))?;
        for (peer, bytes) in self.all_gather_bytes(tag, &mine)?.iter().enumerate() {
            let (theirs, theirs_shown): (Vec<u8>, String) =
                postcard::from_bytes(bytes).map_err(|_| malformed(peer))?;
            if theirs != encoded {
                return Err(CommError::Disagreement {
                    tag: tag.into(),
                    rank: self.rank(),
                    mine: shown,
                    peer,
                    theirs: theirs_shown,
                });
            }
        }
        Ok(())
    }

    /// Ends the job for all ranks: every wait, current or later, fails with `message` and this rank's number.
    /// Best effort: if the store is gone, the others know already.
    pub fn abort(&self, message: &str) {
        if let Err(e) = self.store().abort(message) {
            tracing::warn!("rank {}: posting a failure: {e}", self.rank());
        }
    }

    /// The failure of the job, if there is one, as an error during `what`. Never waits.
    ///
    /// # Errors
    /// [`CommError::PeerLost`], [`CommError::PeerFailed`].
    pub fn check(&self, what: &str) -> Result<()> {
        self.store().check(what)
    }

    /// An NCCL communicator of all ranks for the device of `context`, with NCCL's defaults. Collective. If
    /// one rank lacks NCCL, it is an error on all; a rank that dies meanwhile ends it at once.
    ///
    /// # Errors
    /// [`CommError::NcclMissing`], [`CommError::NcclUnusable`], or [`CommError::PeerFailed`] where that is a
    /// peer's trouble; as [`NcclComm::init`] besides.
    pub fn nccl(&self, context: &CudaContext) -> Result<NcclComm> {
        let options = NcclOptions {
            deadline: self.job.timeout(),
            ..NcclOptions::default()
        };
        self.nccl_with(context, options)
    }

    /// As [`Communicator::nccl`], with options.
    ///
    /// # Errors
    /// As [`Communicator::nccl`].
    pub fn nccl_with(&self, context: &CudaContext, options: NcclOptions) -> Result<NcclComm> {
        let library = NcclLibrary::load().and_then(|library| {
            context.bind_to_thread().map_err(|e| CommError::Driver {
                rank: self.rank(),
                call: "cuCtxSetCurrent",
                cause: e.to_string(),
            })?;
            Ok(library)
        });
        self.nccl_from(library, options)
    }

    /// As [`Communicator::nccl_with`], with this rank's attempt to load the library, for the device that is
    /// current.
    ///
    /// # Errors
    /// As [`Communicator::nccl`].
    pub fn nccl_from(
        &self,
        library: Result<Arc<NcclLibrary>>,
        options: NcclOptions,
    ) -> Result<NcclComm> {
        const TAG: &str = "warpweave.nccl.library";
        let _span = tracing::info_span!("comm.nccl", rank = self.rank()).entered();
        let library = agree(self.exchange(), TAG, library)?;
        NcclComm::init_watched(&library, self.exchange.as_ref(), options, &|what| {
            self.check(what)
        })
    }
}
