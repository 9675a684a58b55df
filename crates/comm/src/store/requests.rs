//! The requests of a rank: its threads wait here for answers, and its reader thread delivers them.
//!
//! ```text
//! register ──▶ open ──hear(Reply)──▶ answered ──wait──▶ gone
//!               ├────deadline──────────────────wait──▶ gone   an answer that comes later is dropped
//!               └────close─────────────────────wait──▶ gone   with the failure that ended the connection
//! ```
//!
//! An answer that has arrived wins over a deadline and over the end. The first failure stands. If a rank died
//! or aborted, each watcher is called with it once, whether it registered before or after.

use std::collections::HashMap;
use std::time::Instant;

use super::sync::{Condvar, Mutex};
use super::wire::{Answer, Failure, FailureKind, ToClient};

/// Wakes the threads that wait on descriptors once the job has failed.
pub(super) trait Wake {
    fn wake(&self);
}

/// Called when a rank is lost, for waits that are not requests to the store.
pub(super) trait Watch {
    fn lost(&self, failure: &Failure);

    /// False once the watcher is no longer needed.
    fn is_live(&self) -> bool;
}

pub(super) struct ClientRequests<B, W> {
    replies: Mutex<Replies<W>>,
    arrived: Condvar,
    failed: B,
}

struct Replies<W> {
    next: u64,
    /// By request; `None` until it is answered.
    answers: HashMap<u64, Option<Answer>>,
    /// The first failure of the job that this rank received.
    failure: Option<Failure>,
    /// No answer will arrive. `failure` says why: the root cause, if that was received before the end.
    closed: bool,
    watchers: Vec<W>,
}

impl<W> Replies<W> {
    fn end(&self) -> Option<Failure> {
        self.failure.clone().filter(|_| self.closed)
    }

    /// Records a failure. If it is the first, and a loss: returns the watchers to call once the lock is
    /// released.
    fn fail(&mut self, failure: Failure) -> Option<(Failure, Vec<W>)> {
        if self.failure.is_some() {
            return None;
        }
        self.failure = Some(failure.clone());
        let watchers = std::mem::take(&mut self.watchers);
        is_loss(&failure).then_some((failure, watchers))
    }
}

/// Whether waits for the rank are futile. A rank that left cleanly has done its part.
fn is_loss(failure: &Failure) -> bool {
    failure.kind != FailureKind::Left
}

/// How a wait ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Answered(Answer),
    Ended(Failure),
    TimedOut,
}

impl<B: Wake, W: Watch> ClientRequests<B, W> {
    pub(super) fn new(failed: B) -> Self {
        Self {
            replies: Mutex::new(Replies {
                next: 0,
                answers: HashMap::new(),
                failure: None,
                closed: false,
                watchers: Vec::new(),
            }),
            arrived: Condvar::new(),
            failed,
        }
    }

    /// Woken once [`ClientRequests::failure`] is some.
    pub(super) fn failed(&self) -> &B {
        &self.failed
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.replies.lock().failure.clone()
    }

    /// Calls `watcher` with the loss of a rank: now if there is one, else when it happens.
    pub(super) fn watch(&self, watcher: W) {
        let mut replies = self.replies.lock();
        match replies.failure.clone() {
            None => {
                replies.watchers.retain(W::is_live);
                replies.watchers.push(watcher);
            }
            Some(failure) => {
                drop(replies);
                if is_loss(&failure) {
                    watcher.lost(&failure);
                }
            }
        }
    }

    /// Reserves an id for a request that is about to be sent. Fails if no answer can arrive any more.
    pub(super) fn register(&self) -> Result<u64, Failure> {
        let mut replies = self.replies.lock();
        if let Some(failure) = replies.end() {
            return Err(failure);
        }
        replies.next += 1;
        let id = replies.next;
        replies.answers.insert(id, None);
        Ok(id)
    }

    /// For a request that was never sent.
    pub(super) fn withdraw(&self, id: u64) {
        self.replies.lock().answers.remove(&id);
    }

    /// Waits for the answer to a registered request, and forgets the request.
    pub(super) fn wait(&self, id: u64, deadline: Instant) -> Outcome {
        let mut replies = self.replies.lock();
        let mut late = false;
        let outcome = loop {
            if let Some(answer) = replies.answers.get_mut(&id).and_then(Option::take) {
                break Outcome::Answered(answer);
            }
            if let Some(failure) = replies.end() {
                break Outcome::Ended(failure);
            }
            if late {
                break Outcome::TimedOut;
            }
            late = self.arrived.wait_until(&mut replies, deadline).timed_out();
        };
        replies.answers.remove(&id);
        outcome
    }

    /// Handles a message of the store. Returns the failure to close with if it was the last one.
    pub(super) fn receive(&self, message: ToClient) -> Option<Failure> {
        let mut replies = self.replies.lock();
        let mut loss = None;
        match message {
            ToClient::Reply { id, answer } => {
                // The request may have timed out already.
                if let Some(slot) = replies.answers.get_mut(&id) {
                    *slot = Some(answer);
                }
            }
            ToClient::Failed(failure) => {
                loss = replies.fail(failure);
                self.failed.wake();
            }
            ToClient::Closing => {
                return Some(Failure {
                    rank: 0,
                    kind: FailureKind::Left,
                    cause: "it closed the job's store".into(),
                });
            }
            ToClient::Refused(refusal) => {
                return Some(lost(format!("its store ended the connection: {refusal}")));
            }
            ToClient::Challenge(_) | ToClient::Welcome(_) => {}
        }
        drop(replies);
        report(loss);
        self.arrived.notify_all();
        None
    }

    /// No more messages will arrive.
    pub(super) fn close(&self, failure: Failure) {
        let mut replies = self.replies.lock();
        let loss = replies.fail(failure);
        replies.closed = true;
        self.failed.wake();
        drop(replies);
        report(loss);
        self.arrived.notify_all();
    }
}

fn report<W: Watch>(loss: Option<(Failure, Vec<W>)>) {
    if let Some((failure, watchers)) = loss {
        watchers.iter().for_each(|watcher| watcher.lost(&failure));
    }
}

#[cfg(all(loom, test))]
impl<B: Wake, W: Watch> ClientRequests<B, W> {
    /// All deadlines pass, for current and later waits.
    pub(super) fn expire_waits(&self) {
        self.arrived.expire_waits(&self.replies.lock());
    }

    pub(super) fn pending(&self) -> usize {
        self.replies.lock().answers.len()
    }
}

/// This rank closed its own connection, which is no fault of rank 0.
pub(super) fn closed_here() -> Failure {
    Failure {
        rank: 0,
        kind: FailureKind::Left,
        cause: "this rank has closed its store".into(),
    }
}

/// The store on rank 0 is gone.
pub(super) fn lost(cause: String) -> Failure {
    Failure {
        rank: 0,
        kind: FailureKind::Lost,
        cause,
    }
}
