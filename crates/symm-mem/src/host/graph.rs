//! Graphs: a recorded sequence of work, enqueued again at every launch.

use super::event::HostEvent;
use super::stream::{Capture, HostStream, Item, Registry};
use crate::error::{Error, Result};
use crate::sync::{Mutex, thread};

/// Work captured from a stream and from those forked from it.
#[derive(Debug)]
pub struct HostGraph {
    origin: HostStream,
    items: Vec<(HostStream, Item)>,
    /// The end of the last launch, for which the next one waits. Locked during a launch, so that launches of
    /// two threads do not interleave.
    last: Mutex<HostEvent>,
}

/// Ends the capture when dropped.
struct Recording<'a>(&'a Registry);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.capture.lock().take();
    }
}

pub(super) fn forbidden(what: &str) -> Error {
    Error::InvalidArgument {
        what: "call during capture",
        why: format!("`{what}` cannot be captured in a graph"),
    }
}

pub(super) fn capture<E: From<Error>>(
    streams: &Registry,
    origin: &HostStream,
    enqueue: impl FnOnce() -> Result<(), E>,
) -> Result<HostGraph, E> {
    {
        let mut capture = streams.capture.lock();
        if capture.is_some() {
            return Err(forbidden("capture").into());
        }
        *capture = Some(Capture {
            thread: thread::current().id(),
            items: Vec::new(),
        });
    }
    let recording = Recording(streams);
    enqueue()?;
    let items = streams
        .capture
        .lock()
        .take()
        .map(|c| c.items)
        .unwrap_or_default();
    drop(recording);
    Ok(HostGraph {
        origin: origin.clone(),
        items,
        last: Mutex::default(),
    })
}

impl HostGraph {
    /// # Safety
    /// As for [`Backend::launch_graph`](crate::Backend::launch_graph).
    pub(super) unsafe fn launch(&self, streams: &Registry, stream: &HostStream) -> Result<()> {
        let last = self.last.lock();
        streams.submit(stream, Item::Wait(last.clone()))?;
        for (on, item) in &self.items {
            let on = if on.is(&self.origin) { stream } else { on };
            streams.submit(on, item.clone())?;
        }
        streams.submit(stream, Item::Record(last.clone()))
    }
}
