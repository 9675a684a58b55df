//! The error type of this crate.

use std::time::Duration;

use crate::exchange::error::ExchangeError;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine, device or driver does not support it.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// The capability: "CUDA", "peer access to device 2", "multicast", …
        what: String,
        /// Why not, and how to get it.
        why: String,
    },
    /// The crate was built without a feature that this call needs.
    #[error(
        "{what} needs device code: build with the feature `{feature}` (`cargo xtask setup` provides nvcc)"
    )]
    FeatureMissing {
        /// What was requested.
        what: String,
        /// Name of the cargo feature.
        feature: &'static str,
    },
    /// A driver call failed.
    #[error("{call} failed with {name} ({code}) on {device}: {hint}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// The driver's code.
        code: i32,
        /// The code's name.
        name: String,
        /// The device.
        device: String,
        /// What to do.
        hint: String,
    },
    /// The device or the machine has too little memory.
    #[error("{bytes} bytes of {kind} memory are not available on {device}: {cause}")]
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
        /// "device", "shared", "address space", …
        kind: &'static str,
        /// The device.
        device: String,
        /// The message of the driver or the operating system.
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
    /// The ranks of a group called with different arguments.
    #[error("{what} differs between ranks: {mine} on rank {rank}, {theirs} on rank {peer}")]
    Disagreement {
        /// What must be the same.
        what: &'static str,
        /// This rank.
        rank: usize,
        /// Its value.
        mine: String,
        /// The other rank.
        peer: usize,
        /// Its value.
        theirs: String,
    },
    /// A collective step failed on another rank, so it failed on all.
    #[error("rank {rank} failed at `{step}`: {cause}")]
    PeerFailed {
        /// The rank that failed.
        rank: usize,
        /// Name of the step.
        step: String,
        /// Its error.
        cause: String,
        /// Whether that was a missing capability, so that other work can go on.
        unavailable: bool,
    },
    /// This rank cannot map the memory that a peer offered.
    #[error("the memory of rank {rank} cannot be opened: {cause}")]
    PeerMemory {
        /// The rank that offered it.
        rank: usize,
        /// The message of the driver or the operating system.
        cause: Box<Error>,
    },
    /// Registered memory is no longer the same allocation.
    #[error(
        "the memory registered at {address:#x} is gone ({now}): register what is there now, and release a \
        registration \
         before its memory is freed"
    )]
    Stale {
        /// Its address.
        address: u64,
        /// What is there now.
        now: String,
    },
    /// What should be released is still held.
    #[error(
        "{what} cannot be closed: rank {rank} still holds {held}; drop what is held first, on all ranks"
    )]
    InUse {
        /// "a registration", "the IPC cache", "the multicast cache", "a pool".
        what: &'static str,
        /// How many times, or how many of its entries or blocks.
        held: usize,
        /// The rank that holds them.
        rank: usize,
    },
    /// A wait for a peer's signal failed: at its deadline, or because a peer gave up or is lost. The device
    /// context is intact.
    #[error(transparent)]
    SignalFault(#[from] SignalFault),
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A stream did not drain in time, or work on it failed.
    #[error("stream of {device}: {cause}")]
    Stream {
        /// The device.
        device: String,
        /// What happened.
        cause: String,
    },
    /// The operating system reported an error.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// An operating system error and what was attempted.
    pub fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Error::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// True if the cause is a capability that this machine or build lacks, so that other work can continue.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Error::Unavailable { .. } | Error::FeatureMissing { .. } => true,
            Error::PeerMemory { cause, .. } => cause.is_unavailable(),
            Error::PeerFailed { unavailable, .. } => *unavailable,
            _ => false,
        }
    }
}

/// The fault record of a failed wait: who waited for whom, for which epoch, which epoch it saw, and why it
/// ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} {}{}", self.story(), self.chain())]
pub struct SignalFault {
    /// Name of the signal pad.
    pub pad: Box<str>,
    /// The rank that waited.
    pub rank: usize,
    /// The rank that did not signal.
    pub peer: usize,
    /// Slot of the pad.
    pub slot: usize,
    /// The expected epoch.
    pub expected: u32,
    /// The last epoch in the flag.
    pub seen: u32,
    /// How long the wait took.
    pub waited: Duration,
    /// If `peer` was itself waiting, the rank at the end of the chain of waits: the first one to investigate.
    pub root: Option<usize>,
    /// Why the wait ended.
    pub cause: FaultCause,
}

/// Why a wait failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultCause {
    /// The deadline passed.
    Deadline {
        /// The ranks that had not signalled in time, among those that this rank waited for until the
        /// deadline.
        missing: Vec<usize>,
    },
    /// Another rank's wait failed first. That rank signals no more and may already have overwritten what this
    /// rank reads.
    PeerGaveUp {
        /// The rank whose wait failed.
        reporter: usize,
    },
    /// The exchange lost a rank.
    PeerLost {
        /// The cause, from the exchange.
        why: String,
    },
    /// The exchange lost a rank of a larger group that is not in the pad's group.
    OutsiderLost {
        /// The lost rank and the cause.
        why: String,
    },
    /// The peer signalled in time, for another call than this rank's: it skipped or repeated one, or calls
    /// with another operation, size, element type, root or variant.
    OtherCall,
    /// A wait of this rank on another pad failed, or the host stopped this rank: a wait on this pad ended, or
    /// a signal was withheld.
    Stopped,
}

impl SignalFault {
    /// From the checks of several pads, the most informative error, if any: a wait that reached its deadline
    /// comes before one that was notified.
    ///
    /// # Errors
    /// One of the given errors; one that is not a fault comes before all others.
    pub fn of_several(checks: impl IntoIterator<Item = Result<()>>) -> Result<()> {
        let distance = |error: &Error| match error {
            Error::SignalFault(fault) => match &fault.cause {
                FaultCause::Deadline { .. } | FaultCause::OtherCall => 1,
                FaultCause::PeerLost { .. } | FaultCause::OutsiderLost { .. } => 2,
                FaultCause::PeerGaveUp { reporter } if *reporter != fault.peer => 3,
                FaultCause::PeerGaveUp { .. } => 4,
                FaultCause::Stopped => 5,
            },
            _ => 0,
        };
        let errors = checks.into_iter().filter_map(Result::err);
        errors.min_by_key(distance).map_or(Ok(()), Err)
    }

    fn chain(&self) -> String {
        let Some(root) = self.root else {
            return String::new();
        };
        format!(
            "; rank {} was itself waiting, in the end for rank {root}",
            self.peer
        )
    }

    fn story(&self) -> String {
        let Self {
            pad,
            rank,
            peer,
            slot,
            expected,
            seen,
            waited,
            ..
        } = self;
        match &self.cause {
            FaultCause::Deadline { missing } => {
                let waits = format!(
                    "waited {waited:?} for rank {peer} to signal slot {slot} of `{pad}` with epoch \
                    {expected} and saw \
                     {seen}"
                );
                match missing.len() {
                    0 | 1 => format!(
                        "{waits}; rank {peer} is dead, stalled, at another call, or skipped one"
                    ),
                    _ => format!(
                        "{waits}; none of ranks {missing:?} came: they are dead, stalled or at another \
                        call, or rank \
                         {rank} repeated a call"
                    ),
                }
            }
            FaultCause::OtherCall => format!(
                "found rank {peer} at another call on `{pad}`, in epoch {expected}: \
                 it skipped or repeated one, or the operation, the size or the element type differs"
            ),
            FaultCause::PeerGaveUp { reporter } if peer == rank => format!(
                "came too late, skipped or repeated a call: rank {reporter} had given up waiting for it \
                on `{pad}`, and \
                 what rank {rank} computed there since is not valid"
            ),
            FaultCause::PeerGaveUp { reporter } if peer == reporter => format!(
                "stopped at slot {slot} of `{pad}`: rank {reporter} gave up, since its wait on another \
                pad had failed"
            ),
            FaultCause::PeerGaveUp { reporter } => format!(
                "stopped at slot {slot} of `{pad}`: rank {reporter} gave up waiting for rank {peer}"
            ),
            FaultCause::PeerLost { why } => {
                format!("stopped at slot {slot} of `{pad}`: rank {peer} is lost ({why})")
            }
            FaultCause::OutsiderLost { why } => {
                format!("stopped at slot {slot} of `{pad}`: lost {why}")
            }
            FaultCause::Stopped => format!(
                "stopped at slot {slot} of `{pad}`, for rank {peer}, since another wait of rank {rank} had \
                failed; `recover` the pad of that one first, then this one"
            ),
        }
    }
}
