//! The state shared by a communicator, its registrations and its aborters.
//!
//! NCCL requires that no thread is inside a call on a communicator that is aborted, and none between the
//! start and the end of a group with it. So a call holds the lock, and an abort that arrives during a call or
//! a group *dooms* the communicator: no further call begins, and whoever ends the open one carries the abort
//! out.
//!
//! The loss of a rank, which the exchange reports, does the same: enqueued work would wait for that rank
//! forever.

use std::ffi::{CString, c_void};
use std::mem::{forget, replace, take};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use warpweave_symm_mem::{Exchange, LossWatcher};

use super::api::{
    IN_PROGRESS, INVALID_USAGE, REMOTE_ERROR, SUCCESS, code_name, ncclComm, ncclComm_t,
};
use super::config::CtaPolicy;
use super::fault::failure;
use super::library::NcclLibrary;
use super::teardown::{Handle, TEARDOWN, abort, bounded, start};
use crate::error::{CommError, Result};

/// How long calls and an abort may still take once a rank is lost.
const LOSS: Duration = Duration::from_millis(100);

/// Time between two looks at whether one is.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Shared {
    pub library: Arc<NcclLibrary>,
    pub rank: usize,
    pub world: usize,
    pub deadline: Duration,
    pub policy: CtaPolicy,
    /// Set before the lock is taken, so that its holder sees it when leaving.
    doomed: AtomicBool,
    /// The rank that the exchange lost, if it is in the group, and the cause.
    lost: OnceLock<(Option<usize>, String)>,
    state: Mutex<State>,
    /// Held while an abort is carried out, so that nobody else takes it for done.
    ending: Mutex<()>,
}

pub(super) struct State {
    /// Null once the communicator has ended.
    pub raw: ncclComm_t,
    /// The non-blocking communicator that a blocking one was split from.
    pub parent: ncclComm_t,
    /// In an open group of some thread.
    grouped: bool,
    /// NCCL is working on it in the background.
    busy: bool,
    pub registrations: Vec<Registration>,
    /// NCCL points into them while the communicators live.
    names: Vec<CString>,
}

/// How memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `ncclCommRegister`.
    Buffer,
    /// `ncclCommWindowRegister`.
    Window { symmetric: bool },
}

/// One entry of the communicator's list of registered memory.
pub(super) struct Registration {
    pub id: u64,
    pub range: Range<u64>,
    pub kind: Kind,
    pub handle: *mut c_void,
    /// Its owner was dropped while NCCL was busy.
    pub retired: bool,
    /// Keeps the memory until it is deregistered.
    pub _memory: Option<Arc<dyn Send + Sync>>,
}

// SAFETY: NCCL ties communicators and registrations to a device and not to a thread; the lock admits one at a
// time.
unsafe impl Send for State {}

impl Shared {
    pub fn new(
        library: &Arc<NcclLibrary>,
        (rank, world): (usize, usize),
        (deadline, policy): (Duration, CtaPolicy),
        (raw, name): (ncclComm_t, Option<CString>),
    ) -> Self {
        Self {
            library: library.clone(),
            rank,
            world,
            deadline,
            policy,
            doomed: AtomicBool::new(false),
            lost: OnceLock::new(),
            ending: Mutex::new(()),
            state: Mutex::new(State {
                raw,
                parent: null_mut(),
                grouped: false,
                busy: false,
                registrations: Vec::new(),
                names: name.into_iter().collect(),
            }),
        }
    }

    /// Ends the communicator once `exchange` loses a rank.
    pub fn watch(self: &Arc<Self>, exchange: &dyn Exchange) {
        let own = Arc::downgrade(self);
        let lost = move |shared: &Self, rank: Option<usize>, cause: &str| {
            let _ = shared.lost.set((rank, cause.into()));
            shared.doomed.store(true, Ordering::Release);
            let own = own.clone();
            // It may take seconds. If no thread can start, the next user of the communicator carries it out.
            let _ = std::thread::Builder::new()
                .name("nccl-loss".into())
                .spawn(move || own.upgrade().map(|shared| shared.finish()));
        };
        exchange.watch(LossWatcher::new(self, lost));
    }

    /// How long an abort may take. Where a rank is lost, nothing is left to be saved.
    fn patience(&self) -> Duration {
        match self.lost.get() {
            Some(_) => LOSS,
            None => TEARDOWN,
        }
    }

    /// Enters a call on a communicator that is alive.
    pub fn enter(&self, call: &'static str) -> Result<MutexGuard<'_, State>> {
        // Whoever has the lock may never return.
        if self.doomed.load(Ordering::Acquire) {
            return Err(self.ended(call));
        }
        let limit = self.deadline.max(TEARDOWN);
        let Some(state) = self.state.try_lock_for(limit) else {
            return Err(self.timeout(call, limit, "another thread is in a call on it"));
        };
        if state.raw.is_null() || self.doomed.load(Ordering::Acquire) {
            drop(state);
            return Err(self.ended(call));
        }
        Ok(state)
    }

    /// Leaves a call, and carries out an abort that arrived meanwhile.
    pub fn leave(&self, state: MutexGuard<'_, State>) {
        drop(state);
        if self.doomed.load(Ordering::Acquire) {
            self.finish();
        }
    }

    /// One call that returns soon.
    pub fn call(&self, call: &'static str, make: impl FnOnce(ncclComm_t) -> i32) -> Result<i32> {
        let mut state = self.enter(call)?;
        let code = make(state.raw);
        if !state.grouped {
            state.busy = code == IN_PROGRESS;
        }
        self.leave(state);
        Ok(code)
    }

    /// One call that may wait for peers inside NCCL. If it takes longer than `limit`, the communicator is
    /// left to it and has ended for everyone else: NCCL forbids aborting it during a call.
    pub fn call_bounded(
        &self,
        call: &'static str,
        limit: Duration,
        make: impl FnOnce(ncclComm_t) -> i32 + Send + 'static,
    ) -> Result<i32> {
        let mut state = self.enter(call)?;
        let handle = Handle(state.raw);
        let code = bounded(call, limit, move || make(handle.get()));
        match code {
            Some(code) => state.busy = code == IN_PROGRESS,
            None => state.abandon(),
        }
        self.leave(state);
        code.ok_or_else(|| self.left_behind(call, limit))
    }

    /// The state of NCCL's background work. Never waits.
    pub fn poll(&self, call: &'static str) -> Result<i32> {
        let get_async_error = self.library.api.get_async_error.get()?;
        self.call(call, |raw| {
            let mut state = SUCCESS;
            // SAFETY: the communicator is alive, and the pointer is to this frame.
            match unsafe { get_async_error(raw, &mut state) } {
                SUCCESS => state,
                code => code,
            }
        })
    }

    /// Waits until a call that may continue in the background has completed, given its result `code`. If it
    /// does not complete by the deadline, or `watch` fails, the communicator is aborted.
    pub fn await_completion(
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
            // A launch takes microseconds, initialization seconds.
            match polls {
                0..64 => std::thread::yield_now(),
                64..256 => std::thread::sleep(Duration::from_micros(20)),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
            polls += 1;
            code = match self.poll(call) {
                Ok(code) => code,
                // The exchange lost a rank: `watch` knows which and why.
                Err(e) if self.lost.get().is_some() => {
                    self.abort();
                    return Err(watch(call).err().unwrap_or(e));
                }
                Err(e) => return Err(e),
            };
        }
        match code {
            SUCCESS => Ok(()),
            code => Err(self.error(call, code)),
        }
    }

    /// Makes calls that may wait for peers inside NCCL, on a thread of their own. If they have not returned
    /// by the deadline, or soon after a rank was lost, the communicator has ended for everyone else: NCCL
    /// forbids aborting it during a call. Their thread carries the abort out if they ever return.
    pub fn bounded_calls(
        &self,
        what: &'static str,
        calls: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let result = start("nccl-connect", calls);
        let result = result.map_err(|error| CommError::io("a thread for NCCL", error))?;
        let (began, mut lost) = (Instant::now(), None);
        loop {
            match result.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.abort();
                    return Err(CommError::Nccl {
                        rank: self.rank,
                        call: what,
                        code: INVALID_USAGE,
                        name: code_name(INVALID_USAGE),
                        detail: "the calls panicked; the communicator was aborted".into(),
                    });
                }
            }
            if lost.is_none() && self.lost.get().is_some() {
                lost = Some(Instant::now());
            }
            let after = began.elapsed();
            if after < self.deadline && lost.is_none_or(|since| since.elapsed() < LOSS) {
                continue;
            }
            self.doomed.store(true, Ordering::Release);
            return Err(match lost {
                Some(_) => self.ended(what),
                None => self.left_behind(what, after),
            });
        }
    }

    /// Aborts the communicator, now or when the open call or group ends. Returns true if it has ended.
    pub fn abort(&self) -> bool {
        self.doomed.store(true, Ordering::Release);
        self.finish()
    }

    fn finish(&self) -> bool {
        let patience = self.patience();
        let Some(_one_at_a_time) = self.ending.try_lock_for(patience) else {
            return false;
        };
        let Some(mut state) = self.state.try_lock_for(patience) else {
            return false;
        };
        if state.grouped {
            return false;
        }
        let comms = [
            replace(&mut state.raw, null_mut()),
            replace(&mut state.parent, null_mut()),
        ];
        let kept = (take(&mut state.registrations), take(&mut state.names));
        drop(state);
        let live = comms.into_iter().filter(|raw| !raw.is_null());
        let ended: Vec<bool> = live
            .map(|raw| abort(&self.library, raw, patience))
            .collect();
        let ended = ended.into_iter().all(|ended| ended);
        if !ended {
            // NCCL may still use what was registered with it.
            forget(kept);
        }
        ended
    }

    /// Joins this thread's group, if it has not ended.
    pub fn join_group(&self, call: &'static str) -> Result<()> {
        self.enter(call)?.grouped = true;
        Ok(())
    }

    /// Leaves its group, with the result of the group's end.
    ///
    /// # Errors
    /// When it was aborted meanwhile.
    pub fn leave_group(&self, call: &'static str, code: i32) -> Result<()> {
        let mut state = self.state.lock();
        state.grouped = false;
        state.busy = code == IN_PROGRESS;
        drop(state);
        if self.doomed.load(Ordering::Acquire) {
            self.finish();
            return Err(self.ended(call));
        }
        Ok(())
    }

    /// Whether it is in an open group.
    ///
    /// # Errors
    /// When it has ended.
    pub fn is_grouped(&self, call: &'static str) -> Result<bool> {
        Ok(self.enter(call)?.grouped)
    }

    /// The handle; null once it has ended.
    pub fn raw(&self) -> ncclComm_t {
        self.enter("ncclComm").map_or(null_mut(), |state| state.raw)
    }

    /// After a split: takes ownership of the parent, which ends with it.
    pub fn adopt_parent(&self, parent: &Self) {
        let (mut mine, mut theirs) = (self.state.lock(), parent.state.lock());
        mine.parent = replace(&mut theirs.raw, null_mut());
        mine.names.append(&mut theirs.names);
    }

    /// Ends the communicator and returns its handle.
    pub fn take(&self, call: &'static str) -> Result<Handle<ncclComm>> {
        let mut state = self.enter(call)?;
        let raw = replace(&mut state.raw, null_mut());
        self.leave(state);
        Ok(Handle(raw))
    }

    /// The lock, whatever state the communicator is in.
    pub fn lock_for_teardown(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock_for(TEARDOWN)
    }

    /// The lock, if the communicator is alive and NCCL is not working on it.
    pub fn idle(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock_for_teardown()?;
        let alive = !state.raw.is_null() && !self.doomed.load(Ordering::Acquire);
        (alive && !state.grouped && !state.busy).then_some(state)
    }

    pub fn error(&self, call: &'static str, code: i32) -> CommError {
        if self.lost.get().is_some() {
            return self.ended(call);
        }
        failure(&self.library, self.rank, call, code)
    }

    pub fn late(&self, call: &'static str, after: Duration) -> CommError {
        self.abort();
        self.timeout(
            call,
            after,
            "a peer is dead, stalled or at another call; the communicator was aborted",
        )
    }

    pub fn left_behind(&self, call: &'static str, after: Duration) -> CommError {
        self.timeout(call, after, "the communicator was left behind in it")
    }

    fn timeout(&self, call: &'static str, after: Duration, why: &str) -> CommError {
        CommError::Timeout {
            rank: self.rank,
            what: format!("{call} ({why})"),
            waiting_for: Vec::new(),
            after,
        }
    }

    fn ended(&self, call: &'static str) -> CommError {
        let rank = self.rank;
        let (code, detail) = match self.lost.get().cloned() {
            Some((Some(peer), cause)) => {
                let what = call.into();
                return CommError::PeerLost {
                    rank,
                    peer,
                    what,
                    cause,
                };
            }
            Some((None, cause)) => (REMOTE_ERROR, format!(", since the job lost {cause}")),
            None => (INVALID_USAGE, String::new()),
        };
        CommError::Nccl {
            rank,
            call,
            code,
            name: code_name(code),
            detail: format!("the communicator was aborted{detail}"),
        }
    }
}

impl State {
    /// Leaves the communicator, and what it may still access, to the thread that is stuck in it.
    pub fn abandon(&mut self) {
        self.raw = null_mut();
        forget((take(&mut self.registrations), take(&mut self.names)));
    }
}
