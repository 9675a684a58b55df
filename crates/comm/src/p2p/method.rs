//! How a transfer moves its bytes.

use std::fmt;
use std::str::FromStr;

use crate::error::CommError;

/// How a transfer moves its bytes. Both ends name the same kind: NCCL, or one of the others, of which the
/// side that copies chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransferMethod {
    /// A copy engine, between a wait and a signal: three launches, the full bandwidth of a link, no SM. On a
    /// GPU nothing stops it once it is enqueued: a put whose wait fails still writes memory that the receiver
    /// has not given, after the notice of the failure. The receiver's next wait or check reports it. The
    /// other methods write nothing after a failed wait.
    CopyEngine,
    /// Loads and stores of the SMs: one launch, the lowest latency, any alignment.
    Sm,
    /// Bulk copies through shared memory (Hopper): one launch, the bandwidth of a link with few SMs.
    /// Addresses that differ modulo 16 use [`TransferMethod::Sm`].
    Tma,
    /// Send and receive of NCCL, which needs [`PointToPoint::attach_nccl`](super::PointToPoint::attach_nccl).
    Nccl,
}

impl TransferMethod {
    /// All of them.
    pub const ALL: [TransferMethod; 4] = [
        TransferMethod::CopyEngine,
        TransferMethod::Sm,
        TransferMethod::Tma,
        TransferMethod::Nccl,
    ];

    /// "copy-engine", "sm", "tma" or "nccl".
    pub const fn name(self) -> &'static str {
        match self {
            TransferMethod::CopyEngine => "copy-engine",
            TransferMethod::Sm => "sm",
            TransferMethod::Tma => "tma",
            TransferMethod::Nccl => "nccl",
        }
    }
}

impl fmt::Display for TransferMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TransferMethod {
    type Err = CommError;

    fn from_str(name: &str) -> Result<Self, CommError> {
        let found = TransferMethod::ALL.into_iter().find(|t| t.name() == name);
        found.ok_or_else(|| CommError::InvalidArgument {
            what: "transfer method",
            why: format!(
                "`{name}`; there are {}",
                TransferMethod::ALL.map(TransferMethod::name).join(", ")
            ),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for method in TransferMethod::ALL {
            assert_eq!(method.name().parse::<TransferMethod>().unwrap(), method);
        }
        let error = "pigeon".parse::<TransferMethod>().unwrap_err().to_string();
        assert!(
            error.contains("pigeon") && error.contains("copy-engine"),
            "{error}"
        );
    }
}
