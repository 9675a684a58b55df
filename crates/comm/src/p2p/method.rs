//! What moves the bytes.

use std::fmt;
use std::str::FromStr;

use crate::error::CommError;

/// What moves the bytes of a transfer. Both ends of a transfer name the same kind: NCCL, or one of the others, of which
/// the one that copies has the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransferMethod {
    /// A copy engine, between a wait and a signal: three launches, the full bandwidth of a link, no SM.
    CopyEngine,
    /// Loads and stores of the sms: one launch, the lowest latency, any alignment.
    Sm,
    /// Bulk copies through shared memory (Hopper): one launch, the bandwidth of a link with few sms.
    /// Addresses that differ modulo 16 go by [`TransferMethod::Sm`].
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
            what: "transport",
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
        for transport in TransferMethod::ALL {
            assert_eq!(
                transport.name().parse::<TransferMethod>().unwrap(),
                transport
            );
        }
        let error = "pigeon".parse::<TransferMethod>().unwrap_err().to_string();
        assert!(
            error.contains("pigeon") && error.contains("copy-engine"),
            "{error}"
        );
    }
}
