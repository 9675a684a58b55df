//! How the ranks of a group hand each other bytes and descriptors while they set up.
//!
//! `warpweave-comm` implements [`Exchange`] over its store and Unix sockets; [`ThreadExchange`] serves ranks that
//! are threads of one process, which is what tests and small examples want.

mod sub;
mod threads;

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use sub::SubExchange;
pub use threads::ThreadExchange;

/// All-gather of bytes and descriptors among the ranks of a group.
///
/// Every method is collective: all ranks call the same methods in the same order with the same `tag`. Every method
/// ends in bounded time; a peer that died or never came is an error that names it.
pub trait Exchange: Send + Sync {
    /// This process's rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world(&self) -> usize;

    /// Returns what every rank gave, by rank.
    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// Gives `fds` to every peer and returns what every rank gave, by rank; this rank's own entry holds duplicates.
    /// Ranks may give different numbers of descriptors.
    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError>;

    /// Calls `watcher` once a rank is lost, now or later, for as long as its owner lives: of the first one, since the group
    /// cannot go on without it. An exchange that cannot learn of a loss by itself never calls it.
    fn watch(&self, watcher: LossWatcher) {
        drop(watcher);
    }

    /// Returns once all ranks have called it.
    fn barrier(&self, tag: &str) -> Result<(), ExchangeError> {
        self.all_gather(tag, &[]).map(drop)
    }
}

type Notify = dyn Fn(Option<usize>, &str) + Send + Sync;

/// Who wants to know of a lost rank at once, since it has work on a device that waits for that rank.
pub struct LossWatcher {
    owner: Weak<dyn Any + Send + Sync>,
    notify: Box<Notify>,
}

impl LossWatcher {
    /// Calls `notify` with a rank that died or left with an error and with what was seen, from any thread, for as long as
    /// `owner` lives. The rank is `None` if it belongs to a larger group that this one is a part of; what was seen then
    /// names it. `notify` returns soon and calls no exchange, and `owner` does not own the exchange.
    pub fn new<T: Send + Sync + 'static>(
        owner: &Arc<T>,
        notify: impl Fn(&T, Option<usize>, &str) + Send + Sync + 'static,
    ) -> Self {
        let weak = Arc::downgrade(owner);
        let notify = {
            let owner = weak.clone();
            move |rank, cause: &str| {
                if let Some(owner) = owner.upgrade() {
                    notify(&owner, rank, cause);
                }
            }
        };
        LossWatcher {
            owner: weak,
            notify: Box::new(notify),
        }
    }

    /// False once the owner is gone: the watcher can be dropped.
    pub fn is_live(&self) -> bool {
        self.owner.strong_count() > 0
    }

    /// Says that `rank` of the exchange is lost.
    pub fn notify(&self, rank: Option<usize>, cause: &str) {
        (self.notify)(rank, cause);
    }

    /// The watcher for a larger group, of whose ranks `number` gives the rank in the smaller one. That loses its peers too if
    /// the larger one loses another rank: both have one exchange.
    #[must_use]
    pub fn renumbered(
        self,
        number: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        let LossWatcher { owner, notify } = self;
        let notify =
            move |rank: Option<usize>, cause: &str| match rank.map(|rank| (rank, number(rank))) {
                Some((lost, None)) => {
                    notify(None, &format!("rank {lost} of the larger group: {cause}"));
                }
                Some((_, number)) => notify(number, cause),
                None => notify(None, cause),
            };
        LossWatcher {
            owner,
            notify: Box::new(notify),
        }
    }
}

impl fmt::Debug for LossWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossWatcher")
            .field("is_live", &self.is_live())
            .finish_non_exhaustive()
    }
}

/// Why an exchange did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Peers did not arrive in time.
    #[error(
        "exchange `{tag}`: no word from ranks {waiting_for:?} after {after:?}; are they alive and at the same call?"
    )]
    Timeout {
        /// Name of the call.
        tag: String,
        /// Ranks that had not arrived.
        waiting_for: Vec<usize>,
        /// How long this rank waited.
        after: Duration,
    },
    /// A peer died or closed its connection.
    #[error("exchange `{tag}`: lost rank {rank}: {cause}")]
    PeerLost {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// What was seen.
        cause: String,
    },
    /// A peer gave up and said why.
    #[error("exchange `{tag}`: rank {rank} failed: {cause}")]
    PeerFailed {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// What it said.
        cause: String,
    },
    /// A peer is at another call.
    #[error(
        "exchange `{tag}`: rank {rank} is at `{theirs}`; all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// The peer.
        rank: usize,
        /// The call of this rank.
        tag: String,
        /// The call of the peer.
        theirs: String,
    },
    /// A peer gave fewer descriptors than its message says.
    #[error(
        "exchange `{tag}`: rank {rank} announced {expected} descriptors and {got} arrived; is a descriptor limit (ulimit -n) reached?"
    )]
    MissingDescriptor {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// Announced.
        expected: usize,
        /// Arrived.
        got: usize,
    },
    /// A peer sent what the protocol does not allow.
    #[error("exchange `{tag}`: rank {rank} broke the protocol: {what}")]
    Protocol {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// What was wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("exchange: {what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
