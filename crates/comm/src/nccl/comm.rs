//! The life of a communicator: come up, be watched, go down; each step bounded.

use std::cell::Cell;
use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};
use serde::{Deserialize, Serialize};
use warpweave_symm_mem::Exchange;

use super::api::{IN_PROGRESS, SUCCESS, code_name, hint};
use super::library::NcclLibrary;
use super::teardown::{Handle, abort, bounded};
use crate::error::{CommError, Result, as_comm_error};

/// How long letting go of a communicator may take.
const TEARDOWN: Duration = Duration::from_secs(5);

/// Whether a launch returns at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// NCCL launches from a thread of its own and is polled until it has, with the deadline: nothing hangs.
    #[default]
    NonBlocking,
    /// NCCL launches from the calling thread, with less latency. The first collective connects the ranks and has no
    /// deadline. Costs a second communicator, split from a non-blocking one that came up within the deadline.
    Blocking,
}

/// How a communicator comes up and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct NcclOptions {
    /// Bound on coming up and on each launch.
    pub deadline: Duration,
    /// How launches are made.
    pub launch: Launch,
}

impl Default for NcclOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            launch: Launch::default(),
        }
    }
}

/// One rank's NCCL communicator, for the device that was current when it was made.
///
/// One thread uses it at a time. Dropping it aborts it, which takes five seconds at most; [`NcclComm::close`] is the
/// orderly way, once all work on it has ended.
///
/// # What the unsafe calls ask for
/// - Every address is device memory of this rank's device, of the size that the call reads or writes, and stays so
///   until the work has ended on `stream`.
/// - `stream` is a live stream of that device.
/// - All ranks make the same calls in the same order, with counts that match.
pub struct NcclComm {
    pub(super) library: Arc<NcclLibrary>,
    pub(super) raw: Cell<ncclComm_t>,
    /// The non-blocking communicator that a blocking one was split from.
    parent: Cell<ncclComm_t>,
    rank: usize,
    world: usize,
    deadline: Duration,
    pub(super) grouped: Cell<u32>,
}

// SAFETY: NCCL ties a communicator to a device and not to a thread; without `Sync` one thread uses it at a time.
unsafe impl Send for NcclComm {}

/// What each rank says before any of them calls NCCL.
#[derive(Serialize, Deserialize)]
struct Opening {
    version: String,
    /// From rank 0 alone: the id, or why there is none.
    id: Option<Result<Vec<u8>, String>>,
}

impl NcclComm {
    /// Makes a communicator of all ranks of `exchange`. Collective. The CUDA device of this rank must be current.
    ///
    /// # Errors
    /// [`CommError::Disagreement`] when the ranks have different versions, [`CommError::Timeout`] when not all ranks came
    /// up by the deadline, [`CommError::Nccl`].
    pub fn init(
        library: &Arc<NcclLibrary>,
        exchange: &dyn Exchange,
        options: NcclOptions,
    ) -> Result<Self> {
        Self::init_watched(library, exchange, options, &|_| Ok(()))
    }

    /// As [`NcclComm::init`], ending early with the error of `watch`, which is asked again and again.
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
        let id = unique_id(library, exchange)?;
        let comm = Self {
            library: library.clone(),
            raw: Cell::new(null_mut()),
            parent: Cell::new(null_mut()),
            rank,
            world,
            deadline: options.deadline,
            grouped: Cell::new(0),
        };
        let mut raw = null_mut();
        let mut config = config(Launch::NonBlocking);
        // SAFETY: both pointers are to this frame, and NCCL writes them before it returns: a non-blocking
        // initialisation goes on in a thread that knows the communicator and none of its caller's memory.
        let code = unsafe {
            (library.api.init_rank_config)(&mut raw, world as i32, id, rank as i32, &mut config)
        };
        comm.raw.set(raw);
        comm.settle("ncclCommInitRankConfig", code, watch)?;
        match options.launch {
            Launch::NonBlocking => Ok(comm),
            Launch::Blocking => comm.split_blocking(watch),
        }
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The library behind it.
    pub fn library(&self) -> &Arc<NcclLibrary> {
        &self.library
    }

    /// NCCL's handle, for calls that this crate does not make. Null after [`NcclComm::abort`].
    pub fn as_raw(&self) -> ncclComm_t {
        self.raw.get()
    }

    /// What has gone wrong in the background, such as a peer whose connection broke. Never waits.
    ///
    /// # Errors
    /// [`CommError::Nccl`].
    pub fn check(&self) -> Result<()> {
        match self.state()? {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(self.error("ncclCommGetAsyncError", code)),
        }
    }

    /// Ends the communicator now: its kernels give up, so that streams stuck in them drain. Every later call fails.
    /// Takes five seconds at most. False: NCCL is still at it.
    pub fn abort(&self) -> bool {
        let comms = [
            self.raw.replace(null_mut()),
            self.parent.replace(null_mut()),
        ];
        let live = comms.into_iter().filter(|raw| !raw.is_null());
        let ended: Vec<bool> = live
            .map(|raw| abort(&self.library, raw, TEARDOWN))
            .collect();
        ended.into_iter().all(|ended| ended)
    }

    /// Lets go in good order once all work on it has ended. Collective.
    ///
    /// # Errors
    /// [`CommError::Timeout`] when a peer does not close too, [`CommError::Nccl`].
    pub fn close(self) -> Result<()> {
        let raw = self.live("ncclCommFinalize")?;
        let (library, handle) = (self.library.clone(), Handle(raw));
        let finalized = bounded("nccl-finalize", self.deadline, move || {
            // SAFETY: the communicator is alive until `destroy` below, and `self` keeps others from using it.
            unsafe { (library.api.finalize)(handle.get()) }
        });
        let Some(code) = finalized else {
            return Err(self.late("ncclCommFinalize", self.deadline));
        };
        self.settle("ncclCommFinalize", code, &|_| Ok(()))?;
        let (library, handle) = (self.library.clone(), Handle(self.raw.replace(null_mut())));
        let destroyed = bounded("nccl-destroy", TEARDOWN, move || {
            // SAFETY: finalised, and `self` holds it no longer.
            unsafe { (library.api.destroy)(handle.get()) }
        });
        match destroyed {
            Some(SUCCESS) => Ok(()),
            Some(code) => Err(self.error("ncclCommDestroy", code)),
            None => Err(self.late("ncclCommDestroy", TEARDOWN)),
        }
    }

    /// The handle, unless the communicator was ended.
    pub(super) fn live(&self, call: &'static str) -> Result<ncclComm_t> {
        let raw = self.raw.get();
        if raw.is_null() {
            return Err(CommError::Nccl {
                rank: self.rank,
                call,
                code: 5,
                name: code_name(5),
                detail: "the communicator was aborted".into(),
            });
        }
        Ok(raw)
    }

    /// Takes the result of a call that may go on in the background, and waits until it has ended one way or the other.
    /// A call that does not end by the deadline, or that `watch` ends, takes the communicator with it.
    pub(super) fn settle(
        &self,
        call: &'static str,
        code: i32,
        watch: &dyn Fn(&str) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let mut code = code;
        let mut polls = 0u32;
        while code == IN_PROGRESS {
            let waited = start.elapsed();
            if waited >= self.deadline {
                return Err(self.late(call, waited));
            }
            if let Err(e) = watch(call) {
                self.abort();
                return Err(e);
            }
            // A launch takes microseconds, coming up seconds.
            match polls {
                0..64 => std::thread::yield_now(),
                64..256 => std::thread::sleep(Duration::from_micros(20)),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            polls += 1;
            code = self.state()?;
        }
        if code != SUCCESS {
            return Err(self.error(call, code));
        }
        Ok(())
    }

    fn state(&self) -> Result<i32> {
        let raw = self.live("ncclCommGetAsyncError")?;
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and the pointer is to this frame.
        let code = unsafe { (self.library.api.get_async_error)(raw, &mut state) };
        if code != SUCCESS {
            return Err(self.error("ncclCommGetAsyncError", code));
        }
        Ok(state)
    }

    pub(super) fn error(&self, call: &'static str, code: i32) -> CommError {
        failure(&self.library, self.raw.get(), self.rank, call, code)
    }

    fn late(&self, call: &'static str, after: Duration) -> CommError {
        self.abort();
        CommError::Timeout {
            rank: self.rank,
            what: format!(
                "{call} (a peer is dead, stalled or at another call; the communicator was aborted)"
            ),
            waiting_for: Vec::new(),
            after,
        }
    }

    /// The split of a non-blocking communicator goes on in the background and is watched as its parent is.
    fn split_blocking(self, watch: &dyn Fn(&str) -> Result<()>) -> Result<Self> {
        const CALL: &str = "ncclCommSplit";
        let start = Instant::now();
        // NCCL writes the new handle when the split is done, which may be after this call has given up.
        let child: &'static AtomicPtr<_> = Box::leak(Box::new(AtomicPtr::new(null_mut())));
        let mut config = config(Launch::Blocking);
        let (parent, rank) = (self.live(CALL)?, self.rank as i32);
        // SAFETY: the parent is alive; the handle's place lives for ever; the configuration is read before the return.
        let code =
            unsafe { (self.library.api.split)(parent, 0, rank, child.as_ptr(), &mut config) };
        // Success may mean that the work has only begun: the state tells.
        let code = if code == SUCCESS { IN_PROGRESS } else { code };
        self.settle(CALL, code, watch)?;
        while child.load(Ordering::Acquire).is_null() {
            let waited = start.elapsed();
            if waited >= self.deadline {
                return Err(self.late(CALL, waited));
            }
            std::thread::sleep(Duration::from_millis(1));
            self.settle(CALL, IN_PROGRESS, watch)?;
        }
        self.parent
            .set(self.raw.replace(child.load(Ordering::Acquire)));
        Ok(self)
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        self.abort();
    }
}

fn failure(
    library: &NcclLibrary,
    raw: ncclComm_t,
    rank: usize,
    call: &'static str,
    code: i32,
) -> CommError {
    // SAFETY: the argument may be null or a live communicator, and the string belongs to NCCL.
    let text = unsafe { (library.api.get_last_error)(raw) };
    let last = if text.is_null() {
        String::new()
    } else {
        // SAFETY: not null, ends with a zero byte, and is copied before the next NCCL call of this thread.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .trim()
            .to_owned()
    };
    let said = [library.describe(code), last]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect::<Vec<_>>();
    let detail = format!("{}; {}", said.join(": "), hint(code));
    CommError::Nccl {
        rank,
        call,
        code,
        name: code_name(code),
        detail,
    }
}

/// The part of the configuration that NCCL 2.18 knows: a newer library takes defaults for the rest by the size.
fn config(launch: Launch) -> ncclConfig_t {
    const MAGIC: u32 = 0xcafe_beef;
    const UNDEFINED: i32 = i32::MIN;
    // SAFETY: integers and pointers, for which zero is a value.
    let mut config: ncclConfig_t = unsafe { std::mem::zeroed() };
    config.size = offset_of!(ncclConfig_t, trafficClass);
    config.magic = MAGIC;
    config.version = 21800;
    config.blocking = i32::from(launch == Launch::Blocking);
    config.cgaClusterSize = UNDEFINED;
    config.minCTAs = UNDEFINED;
    config.maxCTAs = UNDEFINED;
    config.splitShare = UNDEFINED;
    config
}

/// Rank 0's id on every rank, once all have the same version.
fn unique_id(library: &NcclLibrary, exchange: &dyn Exchange) -> Result<ncclUniqueId> {
    const TAG: &str = "warpweave.nccl.unique-id";
    let rank = exchange.rank();
    let id = (rank == 0).then(|| {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the pointer is to this frame.
        let code = unsafe { (library.api.get_unique_id)(&mut id) };
        match code {
            SUCCESS => Ok(id.internal.iter().map(|&c| c as u8).collect()),
            code => Err(failure(library, null_mut(), rank, "ncclGetUniqueId", code).to_string()),
        }
    });
    let mine = Opening {
        version: library.version().to_string(),
        id,
    };
    let unclear = |peer: usize| CommError::Protocol {
        what: format!("rank {peer} sent no opening of NCCL"),
    };
    let bytes = postcard::to_stdvec(&mine).map_err(|_| unclear(rank))?;
    let openings = exchange
        .all_gather(TAG, &bytes)
        .map_err(|e| as_comm_error(e, rank))?
        .iter()
        .enumerate()
        .map(|(peer, bytes)| postcard::from_bytes(bytes).map_err(|_| unclear(peer)))
        .collect::<Result<Vec<Opening>>>()?;
    if let Some(peer) = openings.iter().position(|o| o.version != mine.version) {
        return Err(CommError::Disagreement {
            tag: "NCCL's version".into(),
            rank,
            mine: mine.version,
            peer,
            theirs: openings[peer].version.clone(),
        });
    }
    match &openings[0].id {
        Some(Ok(bytes)) if bytes.len() == 128 => {
            let mut id = ncclUniqueId { internal: [0; 128] };
            for (to, &from) in id.internal.iter_mut().zip(bytes) {
                *to = from as _;
            }
            Ok(id)
        }
        Some(Err(cause)) => Err(CommError::PeerFailed {
            rank,
            peer: 0,
            what: TAG.into(),
            cause: cause.clone(),
        }),
        _ => Err(unclear(0)),
    }
}
