//! Errors of building device code.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::version::Version;

/// A rejected candidate, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The file or folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// The result of a build step.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the device-code build. The text says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No compiler was found, or none of a supported version.
    #[error(
        "no usable nvcc was found{}\n\
         Run `cargo xtask setup` in the workspace for a pinned toolchain, install a CUDA toolkit 12.8 to \
         13.0, \
         or name an nvcc with WARPWEAVE_NVCC.",
        Listed(.rejected)
    )]
    NvccNotFound {
        /// The candidates, and why each was rejected.
        rejected: Vec<Rejection>,
    },

    /// The compiler named by `WARPWEAVE_NVCC` cannot be used.
    #[error(
        "the nvcc named by WARPWEAVE_NVCC cannot be used: {rejection}\nUnset the variable, or name \
        another nvcc."
    )]
    NamedNvcc {
        /// The named path and what is wrong with it.
        rejection: Rejection,
    },

    /// No C++ compiler for the host code of CUDA sources.
    #[error(
        "no C++ host compiler was found (looked for {})\n\
         Install g++ or clang++, or name one with NVCC_CCBIN.",
        .tried.join(", ")
    )]
    HostCompilerNotFound {
        /// The names that were tried.
        tried: Vec<String>,
    },

    /// The CUTLASS headers were not found.
    #[error(
        "the CUTLASS headers were not found{}\n\
         Run `cargo xtask setup`, or name a CUTLASS checkout (the folder that holds include/cutlass) with \
         WARPWEAVE_CUTLASS.",
        Listed(.rejected)
    )]
    CutlassNotFound {
        /// The places that were searched.
        rejected: Vec<Rejection>,
    },

    /// A variable that cargo sets for build scripts is missing.
    #[error("{variable} is not set: {hint}")]
    MissingVariable {
        /// Its name.
        variable: &'static str,
        /// Who should have set it.
        hint: &'static str,
    },

    /// An architecture that nvcc does not know, or the wrong kind for this output.
    #[error("`{given}` is no {expected}")]
    Architecture {
        /// The given text.
        given: String,
        /// What was expected, with an example.
        expected: &'static str,
    },

    /// Two outputs of one build script would have the same file name.
    #[error(
        "{} is built twice with different options\n\
         Tell the two apart with `Builder::variant`.",
        .path.display()
    )]
    DuplicateOutput {
        /// The file that both would write.
        path: PathBuf,
    },

    /// nvcc rejected a source.
    #[error("{program} failed on {} ({status}):\n{output}", .source_file.display())]
    Compile {
        /// The program that failed: nvcc, or the archiver.
        program: String,
        /// The source.
        source_file: PathBuf,
        /// Its exit status, as text.
        status: String,
        /// Its output.
        output: String,
    },

    /// ptxas compiled a kernel but dropped an optimisation that it depends on.
    #[error(
        "ptxas degraded {} ({code}: {meaning}):\n{output}",
        .source_file.display()
    )]
    Degraded {
        /// The source.
        source_file: PathBuf,
        /// The advisory's number.
        code: String,
        /// The meaning of the advisory and its common cause.
        meaning: &'static str,
        /// The lines that ptxas printed.
        output: String,
    },

    /// A program missed its deadline and was killed.
    #[error("{program} had not finished after {} s and was ended", .limit.as_secs())]
    Deadline {
        /// The program.
        program: String,
        /// The deadline.
        limit: Duration,
    },

    /// All compiler slots of this target directory stayed in use.
    #[error(
        "other build scripts held every compiler slot in {} for {} s\n\
         End the other build, or allow more compilers with WARPWEAVE_NVCC_JOBS.",
        .directory.display(),
        .limit.as_secs()
    )]
    Busy {
        /// Where the slots are.
        directory: PathBuf,
        /// How long this build waited.
        limit: Duration,
    },

    /// The compiler came without the static library that its host code links.
    #[error(
        "{} came without libcudart_static.a, which its host code links\n\
         Run `cargo xtask setup`, or name a complete toolkit's nvcc with WARPWEAVE_NVCC.",
        .nvcc.display()
    )]
    NoRuntimeLibrary {
        /// The compiler.
        nvcc: PathBuf,
    },

    /// The operating system reported an error.
    #[error("cannot {action} {}: {source}{}", .path.display(), advice(.source))]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn version_reason(found: Version) -> String {
        use crate::version::{NEWEST, OLDEST};
        if found < OLDEST {
            format!(
                "version {found} is older than {OLDEST}, the first that knows all instructions the \
                kernels use"
            )
        } else {
            format!(
                "version {found} is newer than {NEWEST}, and a driver of branch 580 does not load its PTX \
                 (set WARPWEAVE_ALLOW_NEWER_NVCC=1 if every machine has a newer driver)"
            )
        }
    }
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => " (free space on that disk and build again)",
        io::ErrorKind::PermissionDenied => " (the build needs to write there)",
        _ => "",
    }
}

struct Listed<'a>(&'a [Rejection]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rejection in self.0 {
            write!(f, "\n  {rejection}")?;
        }
        Ok(())
    }
}
