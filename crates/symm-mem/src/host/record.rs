//! What host kernels do with memory and flags: the accesses, and a record of them for tests.
//!
//! Host kernels read and write device memory by [`read`], [`write()`] and [`copy`]. While a [`Recorder`] is
//! on, these leave a line each, as signals and waits do. So a test can compare a kernel with what its plan
//! declares.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;

/// One step of a host kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads memory.
    Read {
        /// First address.
        address: u64,
        /// Length.
        bytes: usize,
    },
    /// Writes memory.
    Write {
        /// First address.
        address: u64,
        /// Length.
        bytes: usize,
    },
    /// Signals a peer.
    Signal {
        /// Row of the pad.
        slot: usize,
        /// Destination rank.
        peer: usize,
    },
    /// Has waited for a peer, in time or not.
    Wait {
        /// Row of the pad.
        slot: usize,
        /// Source rank.
        peer: usize,
        /// How many calls' signals may be outstanding.
        lag: u32,
    },
}

/// A record of what host kernels do, in order.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Vec<Access>>>);

thread_local! {
    /// Who records what this thread launches, or on a stream's thread what it runs.
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

impl Recorder {
    /// Runs `launch`, and records what the kernels do that it launches on host streams, then or later.
    pub fn during<R>(&self, launch: impl FnOnce() -> R) -> R {
        with(Some(self.clone()), launch)
    }

    /// What was recorded so far. Synchronise the stream before.
    pub fn take(&self) -> Vec<Access> {
        std::mem::take(&mut self.0.lock())
    }
}

/// Runs `run` with a recorder, or without one.
pub(super) fn with<R>(recorder: Option<Recorder>, run: impl FnOnce() -> R) -> R {
    /// Puts the former recorder back, after a panic too.
    struct Former(Option<Recorder>);
    impl Drop for Former {
        fn drop(&mut self) {
            RECORDER.set(self.0.take());
        }
    }
    let _former = Former(RECORDER.replace(recorder));
    run()
}

/// The recorder of this thread.
pub(super) fn current() -> Option<Recorder> {
    RECORDER.with_borrow(Clone::clone)
}

/// Records a step, if this thread has a recorder.
pub(super) fn note(access: Access) {
    RECORDER.with_borrow(|recorder| {
        if let Some(recorder) = recorder {
            recorder.0.lock().push(access);
        }
    });
}

/// `count` elements that a kernel reads.
///
/// # Safety
/// They are there for `'a`, aligned, and nothing writes them meanwhile.
pub unsafe fn read<'a, T>(at: *const T, count: usize) -> &'a [T] {
    note(Access::Read {
        address: at as u64,
        bytes: count * size_of::<T>(),
    });
    // SAFETY: the caller's obligation.
    unsafe { std::slice::from_raw_parts(at, count) }
}

/// `count` elements that a kernel writes.
///
/// # Safety
/// They are there for `'a`, aligned, and nothing else accesses them meanwhile.
pub unsafe fn write<'a, T>(at: *mut T, count: usize) -> &'a mut [T] {
    note(Access::Write {
        address: at as u64,
        bytes: count * size_of::<T>(),
    });
    // SAFETY: the caller's obligation.
    unsafe { std::slice::from_raw_parts_mut(at, count) }
}

/// Copies `count` elements.
///
/// # Safety
/// They are there on both sides, aligned and apart; nothing writes the source or accesses the destination
/// meanwhile.
pub unsafe fn copy<T>(from: *const T, to: *mut T, count: usize) {
    let bytes = count * size_of::<T>();
    note(Access::Read {
        address: from as u64,
        bytes,
    });
    note(Access::Write {
        address: to as u64,
        bytes,
    });
    // SAFETY: the caller's obligation.
    unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
}
