//! Streams: a thread with a queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::event::HostEvent;
use super::{Host, record};
use crate::error::{Error, Result};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Instant, Mutex};

/// A queue of work, run in order by its own thread, which ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct HostStream(Arc<Handle>);

/// Ends the thread when the last clone is dropped; the thread itself owns only the queue.
#[derive(Debug)]
struct Handle {
    queue: Arc<Queue>,
    /// The number of the registry that created it.
    home: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is work, or there will be none.
    filled: Condvar,
    /// The last of the work has ended.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Step>,
    running: bool,
    done: u64,
    closed: bool,
    failure: Option<String>,
}

/// A host function and its name.
#[derive(Clone)]
pub(super) struct Work {
    pub name: &'static str,
    pub run: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What can be enqueued and captured.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Work(Work),
    Record(HostEvent),
    Wait(HostEvent),
}

/// An item whose event generation is fixed.
#[derive(Debug)]
enum Step {
    Work(Work),
    Reach(HostEvent, u64),
    Await(HostEvent, u64),
}

impl HostStream {
    /// True if both are the same queue.
    pub(super) fn is(&self, other: &HostStream) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn push(&self, item: Item) {
        let step = match item {
            Item::Work(work) => Step::Work(work),
            Item::Record(event) => {
                let generation = event.next_generation();
                Step::Reach(event, generation)
            }
            Item::Wait(event) => {
                let generation = event.latest_generation();
                Step::Await(event, generation)
            }
        };
        let queue = &self.0.queue;
        queue.state.lock().waiting.push_back(step);
        queue.filled.notify_all();
    }

    /// Blocks until the queue is empty and returns the first failure since the last call.
    pub(super) fn drain(&self, timeout: Duration) -> Result<()> {
        let failure = self.0.queue.drain(timeout)?;
        failure.map_or(Ok(()), |cause| {
            Err(Error::Stream {
                device: "host".into(),
                cause,
            })
        })
    }
}

impl Host {
    /// Enqueues `work` on `stream`. If the stream is being captured, `work` may run more than once. The next
    /// synchronisation of the stream reports an error or a panic of `work`; later work still runs.
    pub fn launch(
        &self,
        stream: &HostStream,
        name: &'static str,
        work: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let recorder = record::current();
        let work = Work {
            name,
            run: Arc::new(move || record::with(recorder.clone(), &work)),
        };
        self.0.streams.submit(stream, Item::Work(work))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.filled.notify_all();
    }
}

impl Queue {
    fn run(&self) {
        loop {
            let step = {
                let mut state = self.state.lock();
                loop {
                    if let Some(step) = state.waiting.pop_front() {
                        state.running = true;
                        break step;
                    }
                    if state.closed {
                        return;
                    }
                    self.filled.wait(&mut state);
                }
            };
            let failure = step.run();
            let mut state = self.state.lock();
            state.running = false;
            state.done += 1;
            if state.failure.is_none() {
                state.failure = failure;
            }
            if state.waiting.is_empty() {
                drop(state);
                self.emptied.notify_all();
            }
        }
    }

    /// Waits until the queue is empty. Kernels may compute for long, so the limit applies to a single item:
    /// twice `timeout`, by which its waits for peers have ended, plus a minute of computation.
    fn drain(&self, timeout: Duration) -> Result<Option<String>> {
        let limit = timeout * 2 + Duration::from_secs(60);
        let mut state = self.state.lock();
        let mut last = (state.done, Instant::now());
        while state.running || !state.waiting.is_empty() {
            if state.done != last.0 {
                last = (state.done, Instant::now());
            }
            let left = limit.saturating_sub(last.1.elapsed());
            if left.is_zero() {
                return Err(Error::Stream {
                    device: "host".into(),
                    cause: format!("no progress for {limit:?}"),
                });
            }
            self.emptied.wait_for(&mut state, left);
        }
        Ok(state.failure.take())
    }
}

impl Step {
    fn run(self) -> Option<String> {
        match self {
            Step::Work(work) => match catch_unwind(AssertUnwindSafe(|| (work.run)())) {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(format!("{}: {error}", work.name)),
                Err(panic) => {
                    let message = panic
                        .downcast_ref::<String>()
                        .map(String::as_str)
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message");
                    Some(format!("{} panicked: {message}", work.name))
                }
            },
            Step::Reach(event, generation) => {
                event.reach(generation);
                None
            }
            Step::Await(event, generation) => {
                event.wait(generation);
                None
            }
        }
    }
}

/// The streams on which a device has work, including those of other devices, and the capture in progress.
#[derive(Debug)]
pub(super) struct Registry {
    number: u64,
    streams: Mutex<Vec<Weak<Queue>>>,
    pub(super) capture: Mutex<Option<Capture>>,
}

/// A capture in progress: its thread, and what it has recorded.
#[derive(Debug)]
pub(super) struct Capture {
    pub thread: ThreadId,
    pub items: Vec<(HostStream, Item)>,
}

impl Default for Registry {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Registry {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            streams: Mutex::default(),
            capture: Mutex::default(),
        }
    }
}

impl Registry {
    pub(super) fn spawn(&self) -> Result<HostStream> {
        let queue = Arc::new(Queue::default());
        let worker = queue.clone();
        thread::Builder::new()
            .name("host-stream".into())
            .spawn(move || worker.run())
            .map_err(|e| Error::io("starting the thread of a stream", e))?;
        self.know(&queue);
        let home = self.number;
        Ok(HostStream(Arc::new(Handle { queue, home })))
    }

    /// Makes [`Registry::quiesce`] wait for the queue.
    fn know(&self, queue: &Arc<Queue>) {
        let mut streams = self.streams.lock();
        streams.retain(|s| s.strong_count() > 0);
        if !streams.iter().any(|s| s.as_ptr() == Arc::as_ptr(queue)) {
            streams.push(Arc::downgrade(queue));
        }
    }

    /// Enqueues `item`, or records it if this thread is capturing.
    pub(super) fn submit(&self, stream: &HostStream, item: Item) -> Result<()> {
        let mut capture = self.capture.lock();
        match capture.as_mut() {
            Some(capture) if capture.thread == thread::current().id() => {
                capture.items.push((stream.clone(), item));
            }
            _ => {
                if stream.0.home != self.number {
                    self.know(&stream.0.queue);
                }
                stream.push(item);
            }
        }
        Ok(())
    }

    /// True if this thread is capturing.
    pub(super) fn thread_is_capturing(&self) -> bool {
        let capture = self.capture.lock();
        capture
            .as_ref()
            .is_some_and(|c| c.thread == thread::current().id())
    }

    /// True if this thread is capturing and has recorded work of `stream`.
    pub(super) fn is_capturing(&self, stream: &HostStream) -> bool {
        let capture = self.capture.lock();
        capture.as_ref().is_some_and(|c| {
            c.thread == thread::current().id() && c.items.iter().any(|(s, _)| s.is(stream))
        })
    }

    /// Blocks until all streams with work of this device are idle, so that memory can be freed. False on
    /// timeout.
    pub(super) fn quiesce(&self, timeout: Duration) -> bool {
        let streams: Vec<_> = self
            .streams
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        streams.iter().all(|queue| match queue.drain(timeout) {
            Ok(failure) => {
                // The next synchronisation reports the failure.
                let mut state = queue.state.lock();
                state.failure = failure.or(state.failure.take());
                true
            }
            Err(_) => false,
        })
    }
}
