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
    /// As [`Bound::synchronize`] on this rank; another rank's failure is one on all. A call that was enqueued
    /// in part stops what follows until [`Bound::recover`].
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
        let mut steps = bound.program.steps.iter().zip(&events);
        let enqueued = steps.try_for_each(|(step, (before, after))| -> Result<()> {
            let stream = resources.stream(step.stream);
            backend.record(before, stream)?;
            // SAFETY: as in `Bound::run`: the plan's steps in the plan's order.
            unsafe { step.enqueue(&resources)? };
            Ok(backend.record(after, stream)?)
        });
        if enqueued.is_err() {
            // As in `Program::enqueue`: the peers' signals for the rest would end waits of the next call.
            backend.stop_waits();
        }
        enqueued?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use warpweave_symm_mem::{Backend, DType, Exchange, Host, ThreadExchange};

    use super::super::addresses::Addresses;
    use super::super::bind::Launch;
    use super::super::error::ExecuteError;
    use super::super::step::{Action, Step};
    use super::*;
    use crate::algorithms;
    use crate::plan::Problem;

    /// A kernel that the device refuses.
    #[derive(Debug)]
    struct Refused;

    impl Launch<Host> for Refused {
        unsafe fn enqueue(
            &self,
            _: &Host,
            _: &<Host as Backend>::Stream,
            _: &Addresses<'_>,
        ) -> Result<()> {
            Err(ExecuteError::NotCaptured {
                plan: "refused".into(),
            })
        }
    }

    #[test]
    fn a_timed_call_that_is_enqueued_in_part_stops_the_next_until_a_recovery() {
        let ranks = ThreadExchange::group(2).into_iter().map(|exchange| {
            std::thread::spawn(move || {
                let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                let backend = Host::new();
                let stream = backend.stream(Default::default()).unwrap();
                let executor = Executor::new(&backend, &exchange).unwrap();
                let problem = Problem::new(8, 4, 6, DType::F32);
                let plan = algorithms::find("pushChunks").unwrap();
                let plan = plan.plan(exchange.rank(), 2, &problem).unwrap();
                // SAFETY: plans of algorithms are proved by the tests of `plans`.
                let mut bound = unsafe { executor.bind_unchecked(plan, &stream).unwrap() };
                executor.timeline(&bound).unwrap();
                bound.program.steps.push(Step {
                    op: 0,
                    stream: 0,
                    action: Action::Kernel {
                        name: "refused",
                        launch: Box::new(Refused),
                    },
                });
                executor.timeline(&bound).unwrap_err();
                assert!(executor.is_stopped());
                exchange.barrier("stopped").unwrap();
                bound.recover().unwrap();
                assert!(!executor.is_stopped());
                bound.program.steps.pop();
                executor.timeline(&bound).unwrap();
                exchange.barrier("end").unwrap();
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}
