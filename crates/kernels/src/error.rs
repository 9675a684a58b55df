//! The error type of this crate.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a launch was refused, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A descriptor is inconsistent, or does not fit its pad.
    #[error("{kernel} on rank {rank}: {what}: {why}")]
    InvalidLaunch {
        /// The kernel.
        kernel: &'static str,
        /// The launching rank.
        rank: usize,
        /// The field of the descriptor.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An error of the memory layer: the driver's errors, missing capabilities, or the missing feature
    /// `nvcc`.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
}

impl Error {
    /// True if the cause is a capability that this device or build lacks, so that other work can continue.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Memory(error) if error.is_unavailable())
    }
}
