//! The error type of this crate.

use std::path::PathBuf;
use std::time::Duration;

use warpweave_symm_mem::{Error as MemoryError, Exchange, ExchangeError, SignalFault};

use crate::nccl::NcclVersion;
use crate::store::refusal::Refusal;

/// Result of this crate.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// What failed, on which rank, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The environment names a launcher but lacks or contradicts what it needs to give.
    #[error("environment of {launcher}: {why}")]
    Environment {
        /// The launcher whose variables were found.
        launcher: String,
        /// Which variables are missing or wrong.
        why: String,
    },
    /// A wait ran past its deadline.
    #[error("rank {rank}: `{what}` timed out after {after:?}{}", waiting(.waiting_for))]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// The call that waited.
        what: String,
        /// The ranks that had not arrived, where that is known.
        waiting_for: Vec<usize>,
        /// How long it waited.
        after: Duration,
    },
    /// A rank died or left while others needed it.
    #[error("rank {rank}: lost rank {peer} during `{what}`: {cause}")]
    PeerLost {
        /// The rank that noticed.
        rank: usize,
        /// The rank that is gone.
        peer: usize,
        /// The call that the noticing rank was in.
        what: String,
        /// What was seen.
        cause: String,
    },
    /// A rank failed and said why.
    #[error("rank {rank}: rank {peer} failed, which ends `{what}`: {cause}")]
    PeerFailed {
        /// The rank that noticed.
        rank: usize,
        /// The rank that failed.
        peer: usize,
        /// The call that the noticing rank was in.
        what: String,
        /// The message of the rank that failed.
        cause: String,
        /// Whether that was a missing capability, so that other work can go on.
        unavailable: bool,
    },
    /// Ranks are at different collective calls.
    #[error(
        "rank {rank} is at `{mine}` while rank {peer} is at `{theirs}`: all ranks must make the same calls \
         in the same order"
    )]
    Mismatch {
        /// This rank.
        rank: usize,
        /// Its call.
        mine: String,
        /// The other rank.
        peer: usize,
        /// Its call.
        theirs: String,
    },
    /// Ranks gave different values where all must give the same.
    #[error("`{tag}` differs between ranks: {mine} on rank {rank}, {theirs} on rank {peer}")]
    Disagreement {
        /// What must be the same.
        tag: String,
        /// This rank.
        rank: usize,
        /// Its value.
        mine: String,
        /// The other rank.
        peer: usize,
        /// Its value.
        theirs: String,
    },
    /// The store refused this rank.
    #[error("the store at {address} refused rank {rank}: {reason}")]
    Refused {
        /// Where the store is.
        address: String,
        /// The rank that asked.
        rank: usize,
        /// Why it was refused.
        reason: Refusal,
    },
    /// A message is larger than the protocol allows.
    #[error("{what} has {size} bytes and the limit is {limit}")]
    TooLarge {
        /// Which message.
        what: String,
        /// Its size in bytes.
        size: usize,
        /// The largest size in bytes.
        limit: usize,
    },
    /// The store rejected a request.
    #[error("rank {rank}: the store rejected `{what}`: {why}")]
    Rejected {
        /// The rank that asked.
        rank: usize,
        /// The request.
        what: String,
        /// Why.
        why: String,
    },
    /// The other end does not speak this crate's protocol.
    #[error("{what}")]
    Protocol {
        /// What was seen.
        what: String,
    },
    /// NCCL is not on this machine.
    #[error("NCCL was not found; set WARPWEAVE_NCCL to the library's path. Tried: {}", .tried.join("; "))]
    NcclMissing {
        /// Each path or name that was tried, with what the loader said.
        tried: Vec<String>,
    },
    /// NCCL was found but cannot be used.
    #[error("NCCL at {} cannot be used: {why}", .path.display())]
    NcclUnusable {
        /// The library.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Measurements could not be saved for later jobs; the previous ones are unchanged.
    #[error("keeping what was measured in {}: {source}", .path.display())]
    NotKept {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The loaded NCCL is too old for this.
    #[error("{what} needs NCCL {needed}, and {found} was loaded")]
    NcclTooOld {
        /// The function or option.
        what: &'static str,
        /// The version that was loaded.
        found: NcclVersion,
        /// The first version that has it.
        needed: NcclVersion,
    },
    /// NCCL registered nothing and returned a null handle.
    #[error(
        "rank {rank}: {call} registered nothing: are NCCL_LOCAL_REGISTER, NCCL_CUMEM_ENABLE and \
         NCCL_WIN_ENABLE on, and can the GPUs map each other's memory?"
    )]
    NcclUnregistered {
        /// The rank on which it did not.
        rank: usize,
        /// NCCL's function.
        call: &'static str,
    },
    /// An NCCL call failed.
    #[error("rank {rank}: {call} failed with {name} ({code}): {detail}")]
    Nccl {
        /// The rank on which it failed.
        rank: usize,
        /// NCCL's function.
        call: &'static str,
        /// NCCL's code.
        code: i32,
        /// The code's name.
        name: &'static str,
        /// NCCL's own last error text, and what to do.
        detail: String,
    },
    /// A CUDA driver call failed.
    #[error("rank {rank}: {call} failed: {cause}")]
    Driver {
        /// The rank on which it failed.
        rank: usize,
        /// The driver's function.
        call: &'static str,
        /// The driver's error.
        cause: String,
    },
    /// An argument is out of its range.
    #[error("{what}: {why}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The token of an earlier transfer was dropped without a wait.
    #[error(
        "rank {rank}: {what} number {index} with rank {peer} on lane {lane} was dropped and never waited \
         for; wait for its token, or call `wait_all`"
    )]
    TokenDropped {
        /// This rank.
        rank: usize,
        /// The rank at the other end.
        peer: usize,
        /// The lane.
        lane: usize,
        /// "expose", "get", "accept" or "put".
        what: &'static str,
        /// Which one of them, from 1.
        index: u64,
    },
    /// A peer did not take part in a transfer in time. The device context is intact; `recover` goes on from
    /// here.
    #[error("transfer on lane {lane}, waiting for `{signal}`: {cause}")]
    Transfer {
        /// The lane.
        lane: usize,
        /// The rank that was waited for, or the one that is lost.
        peer: usize,
        /// "ready", "done", "free" or "arrived".
        signal: &'static str,
        /// The fault that the wait recorded.
        cause: Box<SignalFault>,
    },
    /// The memory layer's answer: the driver's errors, what the device lacks, or the missing feature `nvcc`.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
    /// The operating system refused.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl warpweave_symm_mem::Failure for CommError {
    fn is_unavailable(&self) -> bool {
        self.is_unavailable()
    }
}

impl CommError {
    /// An operating system error and what was tried.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        CommError::Io {
            what: format!("{}: {source}", what.into()),
            source,
        }
    }

    /// True if the cause is a capability that this machine or build lacks, so that other work can go on.
    pub fn is_unavailable(&self) -> bool {
        match self {
            CommError::Memory(error) => error.is_unavailable(),
            CommError::NcclMissing { .. } | CommError::NcclUnusable { .. } => true,
            CommError::PeerFailed { unavailable, .. } => *unavailable,
            _ => false,
        }
    }

    /// The rank that caused the error, where one did.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            CommError::PeerLost { peer, .. }
            | CommError::PeerFailed { peer, .. }
            | CommError::Mismatch { peer, .. }
            | CommError::Disagreement { peer, .. } => Some(*peer),
            CommError::Transfer { peer, .. } => Some(*peer),
            CommError::Memory(MemoryError::PeerFailed { rank, .. }) => Some(*rank),
            CommError::Timeout { waiting_for, .. } => waiting_for.first().copied(),
            CommError::Exchange(
                ExchangeError::PeerLost { rank, .. }
                | ExchangeError::PeerFailed { rank, .. }
                | ExchangeError::Mismatch { rank, .. }
                | ExchangeError::MissingDescriptor { rank, .. },
            ) => Some(*rank),
            _ => None,
        }
    }
}

fn waiting(ranks: &[usize]) -> String {
    match ranks {
        [] => String::new(),
        ranks => format!("; missing ranks {ranks:?}"),
    }
}

/// Converts to the error type of [`warpweave_symm_mem::Exchange`], for the call named `tag`.
pub(crate) fn as_exchange_error(error: CommError, tag: &str) -> ExchangeError {
    let tag = tag.to_owned();
    match error {
        CommError::Timeout {
            waiting_for, after, ..
        } => ExchangeError::Timeout {
            tag,
            waiting_for,
            after,
        },
        CommError::PeerLost { peer, cause, .. } => ExchangeError::PeerLost {
            rank: peer,
            tag,
            cause,
        },
        CommError::PeerFailed { peer, cause, .. } => ExchangeError::PeerFailed {
            rank: peer,
            tag,
            cause,
        },
        CommError::Mismatch { peer, theirs, .. } => ExchangeError::Mismatch {
            rank: peer,
            tag,
            theirs,
        },
        CommError::Exchange(error) => error,
        CommError::Io { what, source } => ExchangeError::Io { what, source },
        other => ExchangeError::Io {
            what: format!("`{tag}`: {other}"),
            source: std::io::Error::other(other.to_string()),
        },
    }
}

/// Converts an error of the exchange, seen by `rank`.
pub(crate) fn as_comm_error(error: ExchangeError, rank: usize) -> CommError {
    match error {
        ExchangeError::Timeout {
            tag,
            waiting_for,
            after,
        } => CommError::Timeout {
            rank,
            what: tag,
            waiting_for,
            after,
        },
        ExchangeError::PeerLost {
            rank: peer,
            tag,
            cause,
        } => CommError::PeerLost {
            rank,
            peer,
            what: tag,
            cause,
        },
        ExchangeError::PeerFailed {
            rank: peer,
            tag,
            cause,
        } => CommError::PeerFailed {
            rank,
            peer,
            what: tag,
            cause,
            unavailable: false,
        },
        ExchangeError::Mismatch {
            rank: peer,
            tag,
            theirs,
        } => CommError::Mismatch {
            rank,
            mine: tag,
            peer,
            theirs,
        },
        other => CommError::Exchange(other),
    }
}

/// Goes on only if this step succeeded on every rank: [`warpweave_symm_mem::agree`] with the errors of this
/// crate.
///
/// # Errors
/// `mine` where it is an error; [`CommError::PeerFailed`] where a peer's is; those of the exchange.
pub(crate) fn agree<T>(exchange: &dyn Exchange, step: &str, mine: Result<T>) -> Result<T> {
    let this = exchange.rank();
    warpweave_symm_mem::agree(exchange, step, mine).map_err(|error| match error {
        CommError::Memory(MemoryError::PeerFailed {
            rank,
            step,
            cause,
            unavailable,
        }) => CommError::PeerFailed {
            rank: this,
            peer: rank,
            what: step,
            cause,
            unavailable,
        },
        CommError::Memory(MemoryError::Exchange(error)) => as_comm_error(error, this),
        own => own,
    })
}
