//! Streams that run asynchronously: each has its own thread while it has work.
//!
//! Without [`ASYNCHRONOUS`](crate::ASYNCHRONOUS) work runs when it is enqueued, so a program makes the same
//! calls in every run. With it, a stream is busy as on a device, and freeing memory that its work uses is
//! detected.

use std::ops::Range;
use std::time::Instant;

use cudarc::driver::sys::CUresult as R;
use parking_lot::Condvar;

use super::run::run;
use crate::journal::{self, Outcome, fault, require};
use crate::state::work::{Item, Key, Recording};
use crate::state::{Driver, lock};

/// Signalled whenever an item has ended.
static ENDED: Condvar = Condvar::new();

impl Driver {
    /// Appends to a stream's work.
    pub fn append(&mut self, key: Key, items: impl IntoIterator<Item = Item>) {
        let fresh = !self.queues.contains_key(&key);
        self.queues.entry(key).or_default().waiting.extend(items);
        if fresh {
            let rank = journal::rank();
            std::thread::spawn(move || {
                journal::set_rank(rank);
                work_off(key);
            });
        }
    }

    /// Whether the stream has work. An error if its work failed.
    pub fn is_busy(&self, key: Key) -> Outcome<bool> {
        match self.failed.get(&key.1) {
            Some(code) => journal::refuse(*code, "work has failed"),
            None => Ok(self.queues.contains_key(&key)),
        }
    }

    /// Refuses to free a range that pending work uses.
    pub fn unused(&self, base: u64, bytes: usize) -> Outcome {
        let gone = base..base + bytes as u64;
        let items = self
            .queues
            .values()
            .flat_map(|q| q.waiting.iter().chain(&q.running));
        let mut used = items.flat_map(|item| match item {
            Item::Run(work) => work.ranges(),
            _ => Vec::new(),
        });
        require(
            !used.any(|range: Range<u64>| range.start < gone.end && gone.start < range.end),
            R::CUDA_ERROR_ILLEGAL_STATE,
            format!("{bytes} bytes at {base:#x} are taken away under work"),
        )
    }
}

/// Runs a stream's work until there is none.
fn work_off((stream, context): Key) {
    loop {
        let item = {
            let mut driver = lock();
            let Some(queue) = driver.queues.get_mut(&(stream, context)) else {
                return;
            };
            queue.running = queue.waiting.pop_front();
            let next = queue.running.clone();
            if next.is_none() {
                driver.queues.remove(&(stream, context));
            }
            ENDED.notify_all();
            next
        };
        match item {
            None => return,
            Some(Item::Reach(recording)) => {
                let _ = recording.set(Instant::now());
            }
            Some(Item::Await(recording)) => await_until(|_| recording.get().is_some()),
            Some(Item::Run(work)) => {
                // SAFETY: the caller that enqueued it guarantees its validity until it has ended.
                if let Err(refusal) = unsafe { run(context, &work) } {
                    fault(format!(
                        "{work:?} failed ({:?}): {}",
                        refusal.code, refusal.why
                    ));
                    lock().failed.insert(context, refusal.code);
                }
            }
        }
    }
}

fn await_until(mut done: impl FnMut(&Driver) -> bool) {
    let mut driver = lock();
    while !done(&driver) {
        // A recording is set without the lock, so a notification may be missed.
        let _ = ENDED.wait_for(&mut driver, std::time::Duration::from_millis(1));
    }
}

/// Returns when the stream is empty.
pub(crate) fn drain(key: Key) -> Outcome {
    await_until(|driver| !driver.queues.contains_key(&key));
    lock().is_busy(key).map(drop)
}

/// Returns when all streams of a context are empty.
pub(crate) fn drain_context(context: u64) {
    await_until(|driver| !driver.queues.keys().any(|(_, of)| *of == context));
}

/// Returns when the recording has been reached.
pub(crate) fn await_recording(recording: &Recording) {
    await_until(|_| recording.get().is_some());
}
