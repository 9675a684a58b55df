//! The token of a post.

use std::fmt;
use std::sync::Arc;

use super::backend::TransferBackend;
use super::role::Role;
use super::state::{Shared, TransferKey};
use crate::error::{CommError, Result};

/// A posted transfer. It remembers what it was posted with; [`Token::wait`] consumes it.
///
/// Dropping a token enqueues nothing. The next post of its kind on its lane then fails with
/// [`CommError::TokenDropped`], unless a later token was waited for meanwhile.
#[must_use = "a transfer that nobody waits for makes the next one on its lane an error"]
pub struct Token<B: TransferBackend> {
    shared: Arc<Shared<B>>,
    of: TransferKey,
    index: u64,
    generation: u64,
    /// Posted in a capture.
    captured: bool,
    posted_on: B::Stream,
    waited: bool,
}

impl<B: TransferBackend> Token<B> {
    pub(super) fn new(
        shared: Arc<Shared<B>>,
        of: TransferKey,
        index: u64,
        generation: u64,
        captured: bool,
        posted_on: B::Stream,
    ) -> Self {
        Token {
            shared,
            of,
            index,
            generation,
            captured,
            posted_on,
            waited: false,
        }
    }

    /// This rank's role.
    pub fn role(&self) -> Role {
        self.of.role
    }

    /// The rank at the other end.
    pub fn peer(&self) -> usize {
        self.of.peer
    }

    /// The lane.
    pub fn lane(&self) -> usize {
        self.of.lane
    }

    /// Makes later work on `stream` wait for the end of the transfer. After it
    /// - the range of an *expose* may be written: the reader has read it;
    /// - the range of an *accept* may be read: the writer has written it;
    /// - what a *get* read is there, and the source of a *put* may be written.
    ///
    /// Tokens may be waited for in any order. The active end waits only for the stream on which the transfer
    /// was posted: on that stream this enqueues nothing; another stream waits for everything on it so far.
    ///
    /// Waits on one lane are ordered on the device, as posts are. A peer that does not arrive in time is the
    /// error of [`PointToPoint::check`](super::PointToPoint::check).
    ///
    /// # Errors
    /// [`CommError::InvalidArgument`] if the endpoint has recovered from a fault since the post, if the
    /// capture of the post has ended, or if `stream` is in capture and this post or an earlier one of its
    /// kind, outside the capture, has not been waited for; what the backend reports. Then the transfer counts
    /// as dropped.
    pub fn wait(mut self, stream: &B::Stream) -> Result<()> {
        let shared = self.shared.clone();
        let captured = shared.backend.is_capturing(stream)?;
        if self.captured && !captured {
            return Err(CommError::InvalidArgument {
                what: "token",
                why: format!("{self:?} was posted in a capture, which is to wait for it"),
            });
        }
        let mut state = shared.state.lock();
        if state.generation != self.generation {
            return Err(CommError::InvalidArgument {
                what: "token",
                why: format!(
                    "{} number {} with rank {} was given up when the endpoint recovered from a fault",
                    self.of.role.name(),
                    self.index,
                    self.of.peer
                ),
            });
        }
        let due = state.due(self.of, self.index, captured)?;
        if self.of.role.is_active() || self.of.by_nccl {
            self.follow(stream)?;
        }
        shared.enqueue_waits(stream, self.of, due, &mut state)?;
        self.waited = true;
        // The drop that follows locks the state.
        drop(state);
        Ok(())
    }

    /// Orders `stream` after the one on which the transfer was posted.
    fn follow(&self, stream: &B::Stream) -> Result<()> {
        let backend = &self.shared.backend;
        if backend.is_same_stream(stream, &self.posted_on) {
            return Ok(());
        }
        let event = backend.event()?;
        backend.record(&event, &self.posted_on)?;
        Ok(backend.wait_event(stream, &event)?)
    }
}

impl<B: TransferBackend> Drop for Token<B> {
    fn drop(&mut self) {
        let is_capturing = || self.shared.backend.is_capturing(&self.posted_on);
        if self.waited || self.captured && !is_capturing().unwrap_or(false) {
            return;
        }
        let mut state = self.shared.state.lock();
        if state.generation == self.generation {
            state.counts(self.of).abandon(self.index, self.captured);
        }
    }
}

impl<B: TransferBackend> fmt::Debug for Token<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} number {} with rank {} on lane {}",
            self.of.role.name(),
            self.index,
            self.of.peer,
            self.of.lane
        )
    }
}
