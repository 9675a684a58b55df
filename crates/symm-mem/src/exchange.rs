//! How the ranks of a group hand each other bytes and descriptors while they set up.
//!
//! `warpweave-comm` implements [`Exchange`] over its store and Unix sockets; [`ThreadExchange`] serves ranks that
//! are threads of one process, which is what tests and small examples want.

mod sub;
mod threads;

use std::os::fd::{BorrowedFd, OwnedFd};
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

    /// Returns once all ranks have called it.
    fn barrier(&self, tag: &str) -> Result<(), ExchangeError> {
        self.all_gather(tag, &[]).map(drop)
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
