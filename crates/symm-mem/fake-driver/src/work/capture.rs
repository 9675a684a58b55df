//! Stream, event and capture operations.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUresult as R;

use crate::journal::{Outcome, refuse, require};
use crate::state::streams::{Capture, Event, Graph, Recorded};
use crate::state::work::{Item, Recording, Work};
use crate::state::{Driver, current};

impl Driver {
    /// The stream's context; for the default streams, the current one.
    pub fn stream_context(&self, stream: u64) -> Outcome<u64> {
        if matches!(stream, 0..=2) {
            return Ok(self.context()?.0);
        }
        match self.streams.get(&stream) {
            Some(stream) if self.contexts.contains_key(&stream.context) => Ok(stream.context),
            Some(_) => refuse(
                R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
                "the context of the stream is gone",
            ),
            None => refuse(
                R::CUDA_ERROR_INVALID_HANDLE,
                format!("there is no stream {stream:#x}"),
            ),
        }
    }

    pub fn capture_of(&mut self, stream: u64) -> Option<(u64, &mut Capture)> {
        let id = self.streams.get(&stream)?.capture?;
        Some((id, self.captures.get_mut(&id)?))
    }

    /// Records `work` if the stream is being captured. Otherwise returns it with its context, to run now.
    pub fn enqueue(&mut self, stream: u64, work: Work) -> Outcome<Option<(u64, Work)>> {
        let context = self.stream_context(stream)?;
        require(
            context == current(),
            R::CUDA_ERROR_INVALID_CONTEXT,
            "the stream belongs to another context than the current one",
        )?;
        match self.capture_of(stream) {
            None => Ok(Some((context, work))),
            Some((_, capture)) if capture.broken => refuse(
                R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                "the capture was broken before",
            ),
            Some((_, capture)) => {
                capture.add(stream, work);
                Ok(None)
            }
        }
    }

    /// Whether a kernel may start before its predecessor has ended: in a capture, after one kernel alone.
    pub fn may_follow_early(&mut self, stream: u64) -> bool {
        self.capture_of(stream).is_none_or(|(_, capture)| {
            let after = capture.after.get(&stream).map_or(&[][..], |nodes| nodes);
            let is_kernel = |node| matches!(capture.work_of(node), Some(Work::Kernel(_)));
            matches!(after, [node] if is_kernel(*node))
        })
    }

    /// For a call that is illegal during a capture: breaks the capture.
    pub fn refuse_in_capture(&mut self, stream: u64, call: &str) -> Outcome {
        let Some((_, capture)) = self.capture_of(stream) else {
            return Ok(());
        };
        capture.broken = true;
        refuse(
            R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            format!("{call} breaks the capture"),
        )
    }

    pub fn begin_capture(&mut self, stream: u64) -> Outcome {
        self.stream_context(stream)?;
        require(
            stream > 2,
            R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            "the default stream cannot be captured",
        )?;
        let under_way = self.capture_of(stream).is_some();
        require(
            !under_way,
            R::CUDA_ERROR_ILLEGAL_STATE,
            "the stream is being captured",
        )?;
        let id = self.name();
        self.captures.insert(id, Capture::new(id, stream));
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(id);
        }
        Ok(())
    }

    /// Ends a capture in any case. Returns its graph, unless the capture was broken.
    pub fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        let context = self.stream_context(stream)?;
        let Some((id, capture)) = self.capture_of(stream) else {
            return refuse(
                R::CUDA_ERROR_ILLEGAL_STATE,
                "the stream is not being captured",
            );
        };
        require(
            capture.origin == stream,
            R::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            "the capture was begun on another stream",
        )?;
        let Some(capture) = self.captures.remove(&id) else {
            return refuse(R::CUDA_ERROR_UNKNOWN, "the capture is gone");
        };
        for stream in self.streams.values_mut().filter(|s| s.capture == Some(id)) {
            stream.capture = None;
        }
        require(
            !capture.broken,
            R::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            "the capture was broken",
        )?;
        require(
            capture.is_joined(),
            R::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            "a stream was forked and not joined again",
        )?;
        let name = self.name();
        let graph = Graph {
            context,
            work: Arc::new(capture.work),
        };
        self.graphs.insert(name, graph);
        Ok(name)
    }

    pub fn record(&mut self, event: u64, stream: u64) -> Outcome {
        let context = self.stream_context(stream)?;
        let recorded = match self.capture_of(stream) {
            Some((id, capture)) => Recorded::Within {
                capture: id,
                seen: capture.order.get(&stream).cloned().unwrap_or_default(),
            },
            None => {
                let recording = Recording::default();
                if self.machine.asynchronous {
                    self.append((stream, context), [Item::Reach(recording.clone())]);
                } else {
                    let _ = recording.set(Instant::now());
                }
                Recorded::At(recording)
            }
        };
        let event = self.event_mut(event)?;
        require(
            event.context == context,
            R::CUDA_ERROR_INVALID_HANDLE,
            "event and stream belong to different contexts",
        )?;
        event.recorded = Some(recorded);
        Ok(())
    }

    /// Orders `stream` after `event`. In a capture, the stream may join it this way.
    pub fn wait_event(&mut self, stream: u64, event: u64) -> Outcome {
        let context = self.stream_context(stream)?;
        let recorded = self.event_mut(event)?.recorded.clone();
        let own = self.capture_of(stream).map(|(id, _)| id);
        match (recorded, own) {
            (None, _) => Ok(()),
            (Some(Recorded::At(recording)), None) => {
                if self.machine.asynchronous {
                    self.append((stream, context), [Item::Await(recording)]);
                }
                Ok(())
            }
            (Some(Recorded::At(_)), Some(_)) => {
                if let Some((_, capture)) = self.capture_of(stream) {
                    capture.broken = true;
                }
                refuse(
                    R::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                    "a capture cannot wait for an event from outside",
                )
            }
            (Some(Recorded::Within { capture, seen }), own) => {
                let Some(under_way) = self.captures.get_mut(&capture) else {
                    return refuse(
                        R::CUDA_ERROR_CAPTURED_EVENT,
                        "the event was recorded in a capture that has ended",
                    );
                };
                require(
                    own.is_none_or(|own| own == capture),
                    R::CUDA_ERROR_STREAM_CAPTURE_MERGE,
                    "the event belongs to another capture",
                )?;
                under_way.join(stream, &seen);
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.capture = Some(capture);
                }
                Ok(())
            }
        }
    }

    pub fn event_mut(&mut self, event: u64) -> Outcome<&mut Event> {
        match self.events.get_mut(&event) {
            Some(event) => Ok(event),
            None => refuse(
                R::CUDA_ERROR_INVALID_HANDLE,
                format!("there is no event {event:#x}"),
            ),
        }
    }
}
