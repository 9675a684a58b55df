//! When each operation of a call ran on the device.

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{SignalPad, agree};

use super::bound::Bound;
use super::error::Result;
use super::{ExecuteBackend, Executor};
use crate::check::Site;
use crate::show;
use crate::timeline::{Cause, Origin, Span, Timeline};

/// What one rank saw of one operation, µs from the common start.
#[derive(Serialize, Deserialize)]
struct Mark {
    op: usize,
    stream: usize,
    text: String,
    start: f64,
    end: f64,
}

impl<B: ExecuteBackend> Executor<B> {
    /// Runs one call with an event before and after every operation, and gives the timeline of all ranks on
    /// every rank. Waits until the call has ended.
    ///
    /// Times count from a barrier of a node's ranks on their devices, so that those of different ranks are
    /// apart by no more than a signal takes; nodes meet on their hosts only. An operation begins when its
    /// stream has come to it: a wait, or a collective, lasts from then on. The events cost time themselves,
    /// some 1 to 2 µs an operation on GPUs: what calls take is the bench's to say. Run the plan before, so
    /// that nothing is done for the first time.
    ///
    /// Collective: all ranks give the same plan, with nothing of theirs under way.
    ///
    /// # Errors
    /// As [`Bound::synchronize`] on this rank; another rank's failure is one on all.
    pub fn timeline(&self, bound: &Bound<B>) -> Result<Timeline> {
        let plan = bound.plan();
        let exchange = self.0.exchange.as_ref();
        let pad = SignalPad::new(&self.0.backend, &bound.node, "timeline", 1)?;
        exchange.barrier("timeline")?;
        let marks = agree(exchange, "a timed call", self.timed_call(bound, &pad))?;
        let marks = serde_json::to_vec(&marks).unwrap_or_default();
        let all = exchange.all_gather("timeline", &marks)?;
        let mut spans = Vec::new();
        for (rank, marks) in all.iter().enumerate() {
            // What a rank of the same build wrote can be read.
            let marks: Vec<Mark> = serde_json::from_slice(marks).unwrap_or_default();
            spans.extend(marks.into_iter().map(|mark| Span {
                rank,
                call: 1,
                stream: mark.stream,
                site: Site::Op(mark.op),
                text: mark.text,
                start: mark.start,
                end: mark.end,
                cause: Cause::Start,
                after: None,
            }));
        }
        Ok(Timeline {
            plan: plan.name.clone(),
            machine: self.0.backend.device().name.clone(),
            origin: Origin::Measured,
            world: plan.world,
            spans,
        })
    }

    /// One call of this rank, from a barrier of all.
    fn timed_call(&self, bound: &Bound<B>, pad: &SignalPad<B>) -> Result<Vec<Mark>> {
        let (backend, plan) = (&self.0.backend, bound.plan());
        let mut events = Vec::with_capacity(bound.program.steps.len());
        for _ in &bound.program.steps {
            events.push((backend.event()?, backend.event()?));
        }
        let start = backend.event()?;
        let everybody: Vec<usize> = (0..bound.node.world()).collect();
        pad.signal(bound.stream(), 0, &everybody)?;
        pad.wait(bound.stream(), 0, &everybody, 0)?;
        backend.record(&start, bound.stream())?;
        // An idle stream would come to its first event before the others have met.
        for stream in &bound.program.streams {
            backend.wait_event(stream, &start)?;
        }
        let resources = bound.resources();
        for (step, (before, after)) in bound.program.steps.iter().zip(&events) {
            let stream = resources.stream(step.stream);
            backend.record(before, stream)?;
            // SAFETY: as in `Bound::run`: the plan's steps in the plan's order.
            unsafe { step.enqueue(&resources)? };
            backend.record(after, stream)?;
        }
        bound.synchronize()?;
        // The last event of a stream stands after its join.
        for stream in &bound.program.streams {
            backend.synchronize(stream)?;
        }
        pad.check(bound.stream())?;
        let micros = |event: &B::Event| -> Result<f64> {
            Ok(backend.elapsed(&start, event)?.as_secs_f64() * 1e6)
        };
        let marks = bound.program.steps.iter().zip(&events);
        let marks = marks.map(|(step, (before, after))| {
            Ok(Mark {
                op: step.op,
                stream: step.stream,
                text: show::op_line(plan, &plan.ops[step.op].kind),
                start: micros(before)?,
                end: micros(after)?,
            })
        });
        marks.collect()
    }
}
