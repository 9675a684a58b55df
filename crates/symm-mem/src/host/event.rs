//! Events: a point in a stream, with a timestamp.

use std::sync::Arc;

use crate::sync::{Condvar, Instant, Mutex};

/// A point in a stream. Each recording starts a new generation. A wait is for the latest generation at the
/// time when the wait was enqueued, as on a GPU.
#[derive(Clone, Debug, Default)]
pub struct HostEvent(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    enqueued: u64,
    reached: u64,
    at: Option<Instant>,
}

impl HostEvent {
    /// Starts the generation of a new recording.
    pub(super) fn next_generation(&self) -> u64 {
        let mut state = self.0.state.lock();
        state.enqueued += 1;
        state.enqueued
    }

    /// The generation that a wait enqueued now is for.
    pub(super) fn latest_generation(&self) -> u64 {
        self.0.state.lock().enqueued
    }

    /// Called when the stream reaches the recording of `generation`.
    pub(super) fn reach(&self, generation: u64) {
        let mut state = self.0.state.lock();
        state.reached = state.reached.max(generation);
        state.at = Some(Instant::now());
        self.0.changed.notify_all();
    }

    /// Blocks until `generation` is reached. It always is: the recording was enqueued before the wait, and
    /// all work on a stream ends.
    pub(super) fn wait(&self, generation: u64) {
        let mut state = self.0.state.lock();
        while state.reached < generation {
            self.0.changed.wait(&mut state);
        }
    }

    /// When the latest recording was reached, if it was.
    pub(super) fn reached(&self) -> Option<Instant> {
        let state = self.0.state.lock();
        if state.reached == state.enqueued {
            state.at
        } else {
            None
        }
    }
}
