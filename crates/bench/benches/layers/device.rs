//! What is timed on the device: by events, the ranks aligned before each call, as everything that the suites
//! time.

use warpweave_bench::Result;
use warpweave_bench::candidate::{Call, Candidate};
use warpweave_bench::clock::Clock;
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_bench::timing::{Effort, Schedule, Timing};

use crate::lockstep::{CALLS, Timed};

/// The clock of all that is timed here. Collective.
///
/// # Errors
/// What the backend reports.
pub fn clock<B: ExecuteBackend>(session: &Session<B>) -> Result<Clock<B>> {
    Clock::new(session, CALLS)
}

/// A candidate with the clock that times its calls.
pub struct OnDevice<'a, B: ExecuteBackend, C> {
    timing: Timing<'a, B>,
    candidate: C,
    schedule: Option<Schedule>,
    /// The input set of the next call.
    set: usize,
}

impl<'a, B: ExecuteBackend, C: Candidate> OnDevice<'a, B, C> {
    /// Times `candidate` by `clock`.
    pub fn new(session: &'a Session<B>, clock: &'a Clock<B>, candidate: C) -> Self {
        let timing = Timing {
            session,
            clock,
            effort: Effort::of(B::KIND, None),
        };
        Self {
            timing,
            candidate,
            schedule: None,
            set: 0,
        }
    }
}

impl<B: ExecuteBackend, C: Candidate> Timed for OnDevice<'_, B, C> {
    fn time(&mut self, calls: usize) -> Result<Vec<f64>> {
        let schedule = match self.schedule {
            Some(schedule) => schedule,
            None => self.timing.schedule(&self.candidate)?,
        };
        self.schedule = Some(schedule);
        let which = (self.set, calls);
        self.set = self.set.wrapping_add(calls);
        self.timing
            .calls(&self.candidate, &schedule, which, Call::Run)
    }
}
