//! The one error type of this crate.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a launch was refused for, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A descriptor contradicts itself or its pad.
    #[error("{kernel} on rank {rank}: {what}: {why}")]
    InvalidLaunch {
        /// The kernel.
        kernel: &'static str,
        /// The rank that wanted to launch it.
        rank: usize,
        /// The field of the descriptor.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The memory layer's answer: the driver's errors, what the device lacks, or the missing feature `nvcc`.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
}

impl Error {
    /// True if the cause is a capability that this device or build lacks, so that other work can go on.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Memory(error) if error.is_unavailable())
    }
}
