//! Why the store refuses a connection.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Version of the store's protocol.
pub(crate) const VERSION: u16 = 2;

/// Why the store refused a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The token is not this job's.
    Token,
    /// The peer speaks another version of the protocol.
    Version {
        /// The version of the store.
        store: u16,
    },
    /// The rank has another world size.
    World {
        /// The store's.
        store: u32,
    },
    /// The rank is not below the world size.
    Rank,
    /// Another process is, or was, this rank.
    Taken,
    /// The message is above the limit.
    TooLarge {
        /// The limit in bytes.
        limit: u32,
    },
    /// The bytes are not a message of this protocol.
    Malformed,
    /// The peer runs as another user of the store's host, and the job's token is not secret.
    User,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Token => f.write_str(
                "wrong job token (WARPWEAVE_JOB_TOKEN): is this the store of another job?",
            ),
            Refusal::Version { store } => write!(
                f,
                "it speaks version {store} of the protocol, this rank {VERSION}"
            ),
            Refusal::World { store } => write!(f, "it serves a job of {store} ranks"),
            Refusal::Rank => f.write_str("the rank is not below the world size"),
            Refusal::Taken => {
                f.write_str("this rank has joined already: do two processes have the same rank?")
            }
            Refusal::TooLarge { limit } => write!(f, "a message above its limit of {limit} bytes"),
            Refusal::Malformed => f.write_str("bytes that are not a message of this protocol"),
            Refusal::User => f.write_str(
                "this rank runs as another user; set WARPWEAVE_JOB_TOKEN, the same on every rank, \
                 to let it in",
            ),
        }
    }
}
