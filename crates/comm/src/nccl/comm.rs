//! The life of a communicator: initialize, use, close or abort; each step with a deadline.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, forget};
use std::ptr::{drop_in_place, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use warpweave_symm_mem::Exchange;

use super::agreement::unique_id;
use super::api::{IN_PROGRESS, INTERNAL_ERROR, SUCCESS, ncclComm, ncclComm_t};
use super::config::{Launch, NcclOptions};
use super::fault::failure;
use super::library::NcclLibrary;
use super::state::Shared;
use super::teardown::{TEARDOWN, abort, bounded};
use crate::error::Result;

/// One rank's NCCL communicator, for the device that was current when it was made.
///
/// One thread uses it at a time; an [`NcclAborter`] aborts it from any. Dropping it aborts it, which takes at
/// most five seconds; [`NcclComm::close`] shuts it down cleanly, once all work on it has ended. Either
/// deregisters what is still registered before that memory may be freed, so windows and memory may be dropped
/// before or after it.
///
/// # What the unsafe calls ask for
/// - Every address is device memory of this rank's device, of the size that the call reads or writes, and
///   stays so until the work has ended on `stream`.
/// - `stream` is a live stream of that device.
/// - All ranks make the same calls in the same order, with counts that match.
/// - Where one rank's buffers lie in a window or a registration, so do those of all ranks, also those that
///   the call does not use there; in symmetric windows they lie at the same offset on every rank.
pub struct NcclComm {
    pub(super) shared: Arc<Shared>,
    pub(super) launch: Launch,
    /// Calls must come in one order on all ranks, so not from two threads at once.
    _one_thread: PhantomData<Cell<()>>,
}

impl fmt::Debug for NcclComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, world) = (self.rank(), self.world());
        write!(f, "rank {rank} of {world} on {:?}", self.shared.library)
    }
}

/// Ends a communicator from any thread.
#[derive(Clone)]
pub struct NcclAborter {
    shared: Arc<Shared>,
}

impl fmt::Debug for NcclAborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclAborter of rank {}", self.shared.rank)
    }
}

impl NcclAborter {
    /// As [`NcclComm::abort`].
    pub fn abort(&self) -> bool {
        self.shared.abort()
    }
}

impl NcclComm {
    /// Makes a communicator of all ranks of `exchange`. Collective. The CUDA device of this rank must be
    /// current.
    ///
    /// # Errors
    /// [`CommError::Disagreement`](crate::CommError::Disagreement) when the ranks have different versions,
    /// [`CommError::Timeout`](crate::CommError::Timeout) when not all ranks came up by the deadline,
    /// [`CommError::NcclTooOld`](crate::CommError::NcclTooOld) on all ranks where one asks for an option that
    /// the library lacks, [`CommError::Nccl`](crate::CommError::Nccl).
    pub fn init(
        library: &Arc<NcclLibrary>,
        exchange: &dyn Exchange,
        options: NcclOptions,
    ) -> Result<Self> {
        Self::init_watched(library, exchange, options, &|_| Ok(()))
    }

    /// As [`NcclComm::init`], ending early with the error of `watch`, which is polled.
    ///
    /// # Errors
    /// As [`NcclComm::init`], and those of `watch`.
    pub fn init_watched(
        library: &Arc<NcclLibrary>,
        exchange: &dyn Exchange,
        options: NcclOptions,
        watch: &dyn Fn(&str) -> Result<()>,
    ) -> Result<Self> {
        let (rank, world) = (exchange.rank(), exchange.world());
        let config = options.config(Launch::NonBlocking, library.version());
        let (id, (mut config, name)) = unique_id(library, exchange, config)?;
        let init = &library.api.init_rank_config;
        let (call, init) = (init.name, init.get()?);
        let mut raw = null_mut();
        // SAFETY: both pointers are to this frame, and NCCL is done with them before it returns: a
        // non-blocking initialisation goes on in a thread that knows the communicator and the name, which it
        // keeps.
        let code = unsafe { init(&mut raw, world as i32, id, rank as i32, &mut config) };
        if raw.is_null() {
            // No handle and no error is a fault in NCCL.
            let failed = !matches!(code, SUCCESS | IN_PROGRESS);
            let code = if failed { code } else { INTERNAL_ERROR };
            return Err(failure(library, rank, call, code));
        }
        let bounds = (options.deadline, options.cta_policy);
        let shared = Shared::new(library, (rank, world), bounds, (raw, name));
        let comm = Self {
            shared: Arc::new(shared),
            launch: options.launch,
            _one_thread: PhantomData,
        };
        comm.shared.watch(exchange);
        comm.shared.await_completion(call, code, watch)?;
        match options.launch {
            Launch::NonBlocking => Ok(comm),
            Launch::Blocking => {
                let child = comm.split_blocking(&options, watch)?;
                child.shared.watch(exchange);
                Ok(child)
            }
        }
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.shared.world
    }

    /// The library it uses.
    pub fn library(&self) -> &Arc<NcclLibrary> {
        &self.shared.library
    }

    /// NCCL's handle, for calls that this crate lacks. Null once it has ended.
    pub fn as_raw(&self) -> ncclComm_t {
        self.shared.raw()
    }

    /// Makes calls in which NCCL may connect the ranks, as it does in the first of a kind: it waits for them
    /// inside the call then, without a deadline of ours. They run on another thread. If they have not
    /// returned by the deadline, or soon after the exchange has lost a rank, this communicator has ended.
    ///
    /// No stream of the calls may be in capture.
    ///
    /// # Errors
    /// Those of the calls, [`CommError::Timeout`](crate::CommError::Timeout),
    /// [`CommError::PeerLost`](crate::CommError::PeerLost); an error that says so if the calls panic.
    pub fn connecting(
        &self,
        calls: impl FnOnce(&NcclComm) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let this = Alias(ManuallyDrop::new(NcclComm {
            shared: self.shared.clone(),
            launch: self.launch,
            _one_thread: PhantomData,
        }));
        let run = move || {
            let this = this;
            calls(&this.0)
        };
        self.shared.bounded_calls("connecting the ranks", run)
    }

    /// An asynchronous error, such as a peer whose connection broke. Never waits.
    ///
    /// # Errors
    /// [`CommError::Nccl`](crate::CommError::Nccl).
    pub fn check(&self) -> Result<()> {
        const CALL: &str = "ncclCommGetAsyncError";
        match self.shared.poll(CALL)? {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.shared.error(CALL, code)),
        }
    }

    /// Aborts the communicator: its kernels give up, so streams stuck in them drain. Every later call fails.
    /// Takes at most five seconds for each of NCCL's communicators. In a group it takes effect at the group's
    /// end, and during a call of another thread at that call's end.
    ///
    /// Returns false if it has not ended yet.
    pub fn abort(&self) -> bool {
        self.shared.abort()
    }

    /// A handle that aborts it from another thread, such as one that watches the job.
    pub fn aborter(&self) -> NcclAborter {
        NcclAborter {
            shared: self.shared.clone(),
        }
    }

    /// Closes it cleanly once all work on it has ended, and deregisters what is still registered. Collective.
    ///
    /// # Errors
    /// [`CommError::Timeout`](crate::CommError::Timeout) when a peer does not close too,
    /// [`CommError::Nccl`](crate::CommError::Nccl).
    pub fn close(self) -> Result<()> {
        self.shared.deregister_all()?;
        let api = &self.shared.library.api;
        let (call, finalize) = (api.finalize.name, api.finalize.get()?);
        let finalize = move |raw| {
            // SAFETY: the communicator is alive while the call runs.
            unsafe { finalize(raw) }
        };
        let code = self
            .shared
            .call_bounded(call, self.shared.deadline, finalize)?;
        self.shared.await_completion(call, code, &|_| Ok(()))?;
        let (call, destroy) = (api.destroy.name, api.destroy.get()?);
        let handle = self.shared.take(call)?;
        let destroyed = bounded(call, TEARDOWN, move || {
            // SAFETY: finalized, and nothing uses it any longer.
            unsafe { destroy(handle.get()) }
        });
        match destroyed {
            Some(SUCCESS) => Ok(()),
            Some(code) => Err(self.shared.error(call, code)),
            None => Err(self.shared.left_behind(call, TEARDOWN)),
        }
    }

    /// A split of a non-blocking communicator continues in the background and is watched as its parent is.
    fn split_blocking(
        self,
        options: &NcclOptions,
        watch: &dyn Fn(&str) -> Result<()>,
    ) -> Result<Self> {
        let parent = &self.shared;
        let split = &parent.library.api.split;
        let (call, split) = (split.name, split.get()?);
        let (mut config, name) = options.config(Launch::Blocking, parent.library.version())?;
        // NCCL writes the new handle when the split completes, which may be after this call has given up.
        let place = Arc::new(AtomicPtr::new(null_mut()));
        let theirs = place.clone();
        let rank = parent.rank as i32;
        let code = parent.call(call, |raw| {
            // SAFETY: the parent is alive; the handle's place is kept below until NCCL has written it; the
            // configuration is read before the return.
            unsafe { split(raw, 0, rank, theirs.as_ptr(), &mut config) }
        });
        if let Err(error) = code.and_then(|code| self.await_split(call, code, &place, watch)) {
            parent.abort();
            let child = place.load(Ordering::Acquire);
            if !child.is_null() {
                abort(&parent.library, child, TEARDOWN);
            }
            // If the split is still running, NCCL uses both.
            forget((name, theirs));
            return Err(error);
        }
        let child = Shared::new(
            &parent.library,
            (parent.rank, parent.world),
            (parent.deadline, parent.policy),
            (place.load(Ordering::Acquire), name),
        );
        child.adopt_parent(parent);
        Ok(Self {
            shared: Arc::new(child),
            launch: Launch::Blocking,
            _one_thread: PhantomData,
        })
    }

    fn await_split(
        &self,
        call: &'static str,
        code: i32,
        place: &AtomicPtr<ncclComm>,
        watch: &dyn Fn(&str) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        // Success may mean that the split has only begun: its state says.
        let code = if code == SUCCESS { IN_PROGRESS } else { code };
        self.shared.await_completion(call, code, watch)?;
        while place.load(Ordering::Acquire).is_null() {
            let waited = start.elapsed();
            if waited >= self.shared.deadline {
                return Err(self.shared.late(call, waited));
            }
            std::thread::sleep(Duration::from_millis(1));
            self.shared.await_completion(call, IN_PROGRESS, watch)?;
        }
        Ok(())
    }
}

/// A communicator on another thread, whose drop does not abort it.
struct Alias(ManuallyDrop<NcclComm>);

impl Drop for Alias {
    fn drop(&mut self) {
        // SAFETY: nothing uses it again; its own drop, which would abort, does not run.
        unsafe { drop_in_place(&mut self.0.shared) };
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        self.abort();
    }
}
