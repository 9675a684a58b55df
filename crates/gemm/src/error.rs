//! The one error type of this crate.

use std::path::PathBuf;

use crate::{GemmProblem, Provider};

/// What went wrong with a GEMM, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Extents, leading dimensions or element types that no provider can serve.
    #[error("invalid GEMM {problem}: {reason}")]
    InvalidProblem {
        /// The problem that was refused.
        problem: Box<GemmProblem>,
        /// Which of its numbers is wrong, and what it must be.
        reason: String,
    },
    /// A valid problem that this provider cannot compute.
    #[error("{provider} cannot compute {problem}: {requirement}")]
    Unsupported {
        /// The provider that was asked.
        provider: Provider,
        /// The problem that was refused.
        problem: Box<GemmProblem>,
        /// What the provider needs.
        requirement: String,
    },
    /// A provider that this backend does not have.
    #[error("{provider} is not available on the {backend} backend")]
    WrongBackend {
        /// The provider that was asked.
        provider: Provider,
        /// The backend's name.
        backend: &'static str,
    },
    /// A plan of one provider or device was used where another is needed, or a buffer is too small or
    /// misplaced.
    #[error("operand {operand} of {problem}: {reason}")]
    Operand {
        /// `A`, `B`, `C`, `bias`, `scales of A`, `staging`, `workspace` and the like. Where each rank has
        /// one, the reason names the rank.
        operand: &'static str,
        /// The problem being computed.
        problem: Box<GemmProblem>,
        /// What is wrong with it.
        reason: String,
    },
    /// The crate was built without a feature.
    #[error(
        "the {provider} kernels were not compiled: build warpweave-gemm with the feature `{feature}`"
    )]
    MissingFeature {
        /// The provider that was asked.
        provider: Provider,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The device cannot run the provider's kernels.
    #[error(
        "{provider} needs {needs}, but the device is `{name}` with compute capability {major}.{minor}"
    )]
    Device {
        /// The provider that was asked.
        provider: Provider,
        /// What it needs.
        needs: &'static str,
        /// The device's name as the driver gives it.
        name: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// No shared library of that name anywhere.
    #[error(
        "cuBLASLt was not found; set WARPWEAVE_CUBLASLT to the path of libcublasLt.so.13, \
         or run `cargo xtask setup --runtime`. Tried:\n  {}",
        .tried.join("\n  ")
    )]
    LibraryNotFound {
        /// Each candidate with the loader's reason for refusing it.
        tried: Vec<String>,
    },
    /// A shared library lacks a function.
    #[error("{} has no `{symbol}`: it is not a cuBLASLt of CUDA 12 or 13", .library.display())]
    MissingSymbol {
        /// The library that was opened.
        library: PathBuf,
        /// The function it lacks.
        symbol: &'static str,
    },
    /// A cuBLASLt call failed.
    #[error("{call} failed with {name} ({status})")]
    CublasLt {
        /// The function called.
        call: &'static str,
        /// The status's symbolic name.
        name: String,
        /// The status as a number.
        status: u32,
    },
    /// cuBLASLt has no algorithm for the problem.
    #[error("cuBLASLt has no algorithm for {problem} within a workspace of {workspace} bytes")]
    NoAlgorithm {
        /// The problem that was asked.
        problem: Box<GemmProblem>,
        /// The workspace that was offered, in bytes.
        workspace: usize,
    },
    /// A call into the CUTLASS library failed.
    #[error("CUTLASS kernel {config}: {call} failed with {text} ({status})")]
    Cutlass {
        /// The kernel configuration.
        config: String,
        /// What was being done.
        call: &'static str,
        /// The status as text.
        text: String,
        /// Positive: a CUDA runtime error; negative: minus a CUTLASS status.
        status: i32,
    },
    /// There was nothing to choose from.
    #[error("there is no candidate to choose from")]
    NoCandidate,
    /// An error of the memory layer.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
}
