//! How benchmarks are timed: work of the device by events, with the ranks aligned before each call, as in the
//! suites; steps of the host, such as an exchange of handles, by the time until they return.

use std::time::Instant;

use warpweave_bench::Result;
use warpweave_bench::candidate::{Candidate, Form};
use warpweave_bench::clock::Clock;
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_bench::timing::{Effort, Timing};

/// Gives the times of so many calls on this rank, in ms. Collective.
pub type Timed<'a> = Box<dyn FnMut(usize) -> Result<Vec<f64>> + 'a>;

/// Times the calls of a candidate by `clock`.
pub fn on_device<'a, B: ExecuteBackend>(
    clock: &'a Clock<'a, B>,
    candidate: impl Candidate + 'a,
) -> Timed<'a> {
    let timing = Timing {
        clock,
        effort: Effort::of(B::KIND, None),
    };
    let (mut schedule, mut set) = (None, 0usize);
    Box::new(move |calls| {
        let known = match schedule {
            Some(known) => known,
            None => timing.schedule(&candidate)?,
        };
        schedule = Some(known);
        let which = (set, calls);
        set = set.wrapping_add(calls);
        timing.calls(&candidate, &known, which, Form::Run)
    })
}

/// Times a collective step, with a barrier of the ranks before each.
pub fn on_host<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    mut step: impl FnMut() -> Result<()> + 'a,
) -> Timed<'a> {
    Box::new(move |calls| {
        let one = |_| {
            session.exchange.barrier("start of a step")?;
            let start = Instant::now();
            step()?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        (0..calls).map(one).collect()
    })
}

/// Work on the session's stream whose time does not depend on what it works on.
pub struct Enqueued<'a> {
    /// Its name in errors.
    pub name: &'static str,
    /// Enqueues it.
    pub enqueue: Box<dyn Fn() -> Result<()> + 'a>,
    /// Waits until the stream is empty, and looks for faults.
    pub end: Box<dyn Fn() -> Result<()> + 'a>,
}

impl Candidate for Enqueued<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn call(&self, _: Form) -> Result<()> {
        (self.enqueue)()
    }

    fn synchronize(&self) -> Result<()> {
        (self.end)()
    }
}
