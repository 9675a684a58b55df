//! Calls into NCCL that may not return: each runs on its own thread, which is abandoned at a deadline.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::api::ncclComm_t;
use super::library::NcclLibrary;

/// Deadline of a deregistration, free, destroy or abort.
pub(super) const TEARDOWN: Duration = Duration::from_secs(5);

/// A pointer of NCCL that is sent to another thread.
pub(super) struct Handle<T>(pub *mut T);

// SAFETY: NCCL ties communicators, registrations and memory to a device and not to a thread; a `Handle` is
// used by one thread at a time.
unsafe impl<T> Send for Handle<T> {}

impl<T> Handle<T> {
    /// A method, so that a closure captures the whole handle, which is `Send`.
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

/// Starts `call` on its own thread, whose result can be received, by nobody too.
pub(super) fn start<T: Send + 'static>(
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Receiver<T>> {
    let (done, result) = channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || done.send(call()))?;
    Ok(result)
}

/// Runs `call` on its own thread. Returns `None` if it did not return within `limit`, or no thread was
/// available.
pub(super) fn bounded<T: Send + 'static>(
    name: &str,
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    start(name, call).ok()?.recv_timeout(limit).ok()
}

/// Aborts a communicator, which ends its kernels and frees it. Returns false if that takes longer than
/// `limit`.
pub(super) fn abort(library: &Arc<NcclLibrary>, comm: ncclComm_t, limit: Duration) -> bool {
    let Ok(call) = library.api.abort.get() else {
        return false;
    };
    let handle = Handle(comm);
    let returned = bounded("nccl-abort", limit, move || {
        // SAFETY: the caller gives the communicator up; nothing else uses it from here on.
        unsafe { call(handle.get()) }
    });
    if returned.is_none() {
        tracing::warn!(
            "ncclCommAbort has not returned after {limit:?}; its communicator is left behind"
        );
    }
    returned.is_some()
}
