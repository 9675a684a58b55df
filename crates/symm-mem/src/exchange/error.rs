//! Why an exchange failed.

use std::time::Duration;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// Peers did not arrive in time.
    #[error(
        "exchange `{tag}`: no message from ranks {waiting_for:?} after {after:?}; are they alive and at \
        the same call?"
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
        /// The cause.
        cause: String,
    },
    /// A peer gave up and sent the reason.
    #[error("exchange `{tag}`: rank {rank} failed: {cause}")]
    PeerFailed {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// The reason.
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
    /// A peer sent fewer descriptors than its message states.
    #[error(
        "exchange `{tag}`: rank {rank} sent a message with {expected} descriptors and {got} arrived; is a \
        descriptor limit (ulimit -n) reached?"
    )]
    MissingDescriptor {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// Descriptors in the message.
        expected: usize,
        /// Descriptors that arrived.
        got: usize,
    },
    /// A peer violated the protocol.
    #[error("exchange `{tag}`: rank {rank} broke the protocol: {what}")]
    Protocol {
        /// The peer.
        rank: usize,
        /// Name of the call.
        tag: String,
        /// What was wrong.
        what: String,
    },
    /// The exchange has no [marks](super::Exchange::mark).
    #[error(
        "exchange: no mark `{name}`: ranks that do not share memory need an exchange with marks"
    )]
    NoMarks {
        /// Name of the mark.
        name: String,
    },
    /// The operating system reported an error.
    #[error("exchange: {what}")]
    Io {
        /// What was attempted.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}
