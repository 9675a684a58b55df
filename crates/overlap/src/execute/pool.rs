//! The streams other than the callers': one set for all plans of an executor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use warpweave_symm_mem::{Backend, Priority};

use super::error::Result;

/// Streams that plans share, by urgency and place: the second urgent stream of every plan is one and the
/// same.
///
/// So an executor has as many streams of a priority as the plan with the most of them, however many plans are
/// bound. No two streams of one plan are the same: a plan that is free of deadlocks alone could have one
/// otherwise.
///
/// Plans that share streams do not disturb each other when their calls follow each other on one caller's
/// stream: a call forks from that and is joined to it. See [`Executor`](super::Executor) for several callers.
#[derive(Debug)]
pub struct StreamPool<B: Backend> {
    backend: B,
    streams: Mutex<HashMap<Priority, Vec<B::Stream>>>,
}

impl<B: Backend> StreamPool<B> {
    /// A pool without streams.
    pub fn new(backend: &B) -> Self {
        Self {
            backend: backend.clone(),
            streams: Mutex::default(),
        }
    }

    /// A stream for each of `priorities`, made where the pool has too few.
    ///
    /// # Errors
    /// What the backend reports when it makes a stream.
    pub fn streams(&self, priorities: &[Priority]) -> Result<Vec<B::Stream>> {
        // A thread that panicked with it has left whole streams.
        let mut pool = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken: HashMap<Priority, usize> = HashMap::new();
        let mut streams = Vec::with_capacity(priorities.len());
        for &priority in priorities {
            let place = taken.entry(priority).or_default();
            let known = pool.entry(priority).or_default();
            if known.len() == *place {
                known.push(self.backend.stream(priority)?);
            }
            streams.push(known[*place].clone());
            *place += 1;
        }
        Ok(streams)
    }

    /// How many streams have been made.
    pub fn size(&self) -> usize {
        let pool = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        pool.values().map(Vec::len).sum()
    }
}
