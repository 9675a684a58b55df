//! The one clock: events on the device, after an alignment of the ranks of a node on the device.
//!
//! Nodes are not aligned with each other: no signal reaches from one to another. A call that spans nodes is
//! timed on the slowest rank, which includes what it waits for the other nodes.

use std::time::Duration;

use warpweave_report::statistics::{Spread, slowest};
use warpweave_symm_mem::{BackendKind, SignalPad};

use crate::error::Result;
use crate::session::{ExecuteBackend, Session};

/// The fewest empty calls by which the clock's own cost is measured.
const EMPTY_CALLS: usize = 20;

/// Times work on a session's stream.
///
/// A single call is timed like this: the stream is kept busy for as long as the host needs to enqueue what
/// follows, so that no launch is waited for; then each rank signals every other of its node and waits for
/// all, so that none is late; then an event, the call, and an event. The time of a call is that of the
/// slowest rank.
pub struct Clock<'a, B: ExecuteBackend> {
    /// This rank.
    pub session: &'a Session<B>,
    pad: SignalPad<B>,
    peers: Vec<usize>,
    marks: Vec<(B::Event, B::Event)>,
}

impl<'a, B: ExecuteBackend> Clock<'a, B> {
    /// A clock for up to `calls` timed calls between two readings. Collective.
    pub fn new(session: &'a Session<B>, calls: usize) -> Result<Self> {
        let backend = &session.backend;
        let marks = (0..calls).map(|_| Ok((backend.event()?, backend.event()?)));
        Ok(Self {
            session,
            pad: SignalPad::new(backend, &session.node, "clock", 1)?,
            peers: session.peers(),
            marks: marks.collect::<Result<_>>()?,
        })
    }

    /// How many calls can be timed between two readings.
    pub fn capacity(&self) -> usize {
        self.marks.len()
    }

    /// Enqueues a timed `call`, the `index`-th since the last reading, with `lead` to hide the cost of
    /// enqueuing it.
    pub fn time(
        &self,
        index: usize,
        lead: Duration,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (backend, stream) = (&self.session.backend, &self.session.stream);
        // The host's streams are threads: there is no launch to hide.
        if B::KIND == BackendKind::Cuda {
            backend.delay(stream, lead)?;
        }
        self.pad.signal(stream, 0, &self.peers)?;
        self.pad.wait(stream, 0, &self.peers, 0)?;
        let (start, end) = &self.marks[index];
        backend.record(start, stream)?;
        call()?;
        backend.record(end, stream)?;
        Ok(())
    }

    /// What the clock itself costs: the times of empty calls, of the slowest rank each. Collective.
    pub fn cost(&self) -> Result<Option<Spread>> {
        let (session, calls) = (self.session, self.capacity());
        let mut samples = Vec::new();
        for _ in 0..EMPTY_CALLS.div_ceil(calls.max(1)) {
            let mine = || {
                for i in 0..calls {
                    self.time(i, Duration::from_micros(200), || Ok(()))?;
                }
                session.backend.synchronize(&session.stream)?;
                self.read(calls)
            };
            samples.extend(slowest(&session.agree("empty calls", mine())?));
        }
        Ok(Spread::of(&samples))
    }

    /// The times of the first `calls` calls in milliseconds, after the stream was synchronised.
    ///
    /// # Errors
    /// A rank did not come to an alignment; an event was not reached.
    pub fn read(&self, calls: usize) -> Result<Vec<f64>> {
        let session = self.session;
        self.pad.check(&session.stream)?;
        let times = self.marks[..calls]
            .iter()
            .map(|(start, end)| Ok(session.backend.elapsed(start, end)?.as_secs_f64() * 1e3));
        times.collect()
    }
}
