//! What is timed on the host: calls that return when their work is done, as those that exchange handles.

use std::time::Instant;

use warpweave_bench::Result;
use warpweave_bench::session::{ExecuteBackend, Session};

use crate::lockstep::Timed;

/// A collective step.
pub struct OnHost<'a, B: ExecuteBackend, F> {
    session: &'a Session<B>,
    step: F,
}

impl<'a, B: ExecuteBackend, F: FnMut() -> Result<()>> OnHost<'a, B, F> {
    /// Times `step`, with the ranks met before each.
    pub fn new(session: &'a Session<B>, step: F) -> Self {
        Self { session, step }
    }
}

impl<B: ExecuteBackend, F: FnMut() -> Result<()>> Timed for OnHost<'_, B, F> {
    fn time(&mut self, calls: usize) -> Result<Vec<f64>> {
        let one = |_| {
            self.session.exchange.barrier("start of a step")?;
            let start = Instant::now();
            (self.step)()?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        (0..calls).map(one).collect()
    }
}
