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
    /// The device lacks what the kernel needs.
    #[error("{kernel} needs {needs}, which {device} does not have: {instead}")]
    Capability {
        /// The kernel.
        kernel: &'static str,
        /// What it needs.
        needs: &'static str,
        /// The device, with its compute capability.
        device: String,
        /// What to use in its place.
        instead: &'static str,
    },
    /// The device code could not be loaded or launched.
    #[error("{kernel} on rank {rank}: {call} failed: {source}")]
    Driver {
        /// The kernel.
        kernel: &'static str,
        /// The rank.
        rank: usize,
        /// The driver's function.
        call: &'static str,
        /// The driver's answer.
        source: cudarc::driver::DriverError,
    },
    /// An error of the memory layer, among them the missing feature `nvcc`.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
}

impl Error {
    /// True if the cause is a capability that this device or build lacks, so that other work can go on.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Error::Capability { .. } => true,
            Error::Memory(error) => error.is_unavailable(),
            _ => false,
        }
    }
}
