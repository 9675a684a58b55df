//! What can go wrong in a command, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a command of xtask fails; the message says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "cannot run `{program}`: {source}; install Rust from https://rustup.rs, or run a bundle made \
            with `cargo xtask bundle DIR`"
    )]
    CargoMissing { program: PathBuf, source: io::Error },

    #[error("no Warpweave workspace at or above {} and no bundle.json next to this program", .from.display())]
    NoWorkspace { from: PathBuf },

    #[error("`{command}` failed with {status}: the compiler's messages are above")]
    BuildFailed { command: String, status: ExitStatus },

    #[error("`{command}` made no `{wanted}`")]
    NotBuilt { command: String, wanted: String },

    #[error("`{command}` failed with {status}")]
    CommandFailed { command: String, status: ExitStatus },

    #[error("cannot run {}: {source}", .program.display())]
    NotStarted { program: PathBuf, source: io::Error },

    #[error("{what} {}: {source}", .path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },

    #[error("no space for logs in {}: {available} bytes left, {needed} needed; free some, or choose \
         another folder with --logs DIR", .path.display())]
    LogSpace {
        path: PathBuf,
        available: u64,
        needed: u64,
    },

    #[error(
        "port {port} on 127.0.0.1 cannot be used for the store: {source}; leave --port out to take a free one"
    )]
    Port { port: u16, source: io::Error },

    #[error("{asked} ranks asked for: {limit}")]
    Ranks { asked: usize, limit: String },

    #[error(
        "--device cuda: this machine shows no NVIDIA GPU ({looked}); use --device host, or `cargo xtask \
            doctor` to see what is missing"
    )]
    NoGpu { looked: String },

    #[error("{option}: {why}")]
    Option { option: &'static str, why: String },

    #[error("`{program}` refused these options with {status}: its message is above")]
    Refused {
        program: &'static str,
        status: ExitStatus,
    },

    #[error("rank {rank} of {world} {end}; its log is {}", .log.display())]
    RankFailed {
        rank: usize,
        world: usize,
        end: End,
        log: PathBuf,
    },

    #[error(
        "ranks {ranks:?} are still there after SIGKILL: the kernel holds them, most likely in a driver call"
    )]
    RanksStuck { ranks: Vec<usize> },

    #[error("the job did not end within {limit:?} (--timeout); ranks {running:?} were still running, \
         logs are in {}", .logs.display())]
    JobTimeout {
        limit: Duration,
        running: Vec<usize>,
        logs: PathBuf,
    },

    #[error("interrupted by {}", SignalName(*.signal))]
    Interrupted { signal: i32 },

    #[error("{failed} failed")]
    TestsFailed { failed: usize },

    #[error("step `{step}` failed with {status}")]
    StepFailed {
        step: &'static str,
        status: ExitStatus,
    },

    #[error("{}: {why}; make the bundle again with `cargo xtask bundle DIR`", .manifest.display())]
    Bundle { manifest: PathBuf, why: String },

    #[error("there are no pinned wheels for {architecture}{}", OwnToolchain)]
    NoWheels { architecture: &'static str },

    #[error(
        "no Python 3.8 or newer (tried {tried}): install python3 with pip, or name one with \
            WARPWEAVE_PYTHON{}",
        OwnToolchain
    )]
    NoPython { tried: String },

    #[error(
        "{python} has no pip: install python3-pip, or run `{python} -m ensurepip`{}",
        OwnToolchain
    )]
    NoPip { python: String },

    #[error(
        "--peers torch: no Python with a PyTorch that has symmetric memory (tried {tried}): install \
        PyTorch 2.6 or newer there, name another Python with WARPWEAVE_PYTHON, or give figures that \
        were measured before, by --peers FILE"
    )]
    NoTorch { tried: String },

    #[error(
        "cannot download {component}: {why}; pip said:\n  {said}{}",
        OwnToolchain
    )]
    Download {
        component: &'static str,
        why: &'static str,
        said: String,
    },

    #[error("no space for the toolchain in {}: about {} MB are needed{}; free some, or move the target \
         directory with CARGO_TARGET_DIR",
        .path.display(), .needed / 1_000_000,
        .available.map(|bytes| format!(", {} MB are left", bytes / 1_000_000)).unwrap_or_default())]
    ToolchainSpace {
        path: PathBuf,
        needed: u64,
        available: Option<u64>,
    },

    #[error("cannot make {component} of its wheels: {why}{}", OwnToolchain)]
    Unpack {
        component: &'static str,
        why: String,
    },

    #[error("another `cargo xtask setup` has held {} for {} s: end it and start again",
        .path.display(), .limit.as_secs())]
    SetupBusy { path: PathBuf, limit: Duration },

    #[error(transparent)]
    NotCompared(Box<Error>),

    #[error("the host backend cannot run here: {missing}")]
    Unfit { missing: String },
}

impl Error {
    /// Wraps the failure of a file operation.
    pub fn file(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::File { what, path, source }
    }

    /// Wraps the failure to start a program.
    pub fn not_started(program: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let program = program.as_ref().to_path_buf();
        move |source| Error::NotStarted { program, source }
    }

    /// An option that cannot be followed.
    pub fn option(option: &'static str, why: impl Into<String>) -> Error {
        let why = why.into();
        Error::Option { option, why }
    }

    /// Whether the command has already printed it, in a last line that must stay the last.
    pub fn is_told(&self) -> bool {
        matches!(self, Error::TestsFailed { .. } | Error::StepFailed { .. })
    }

    /// The exit code of the process: a rank's own, 128 and the signal where one ended it, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::RankFailed {
                end: End::Code(code),
                ..
            } => u8::try_from(*code).unwrap_or(1).max(1),
            Error::RankFailed {
                end: End::Signal(signal),
                ..
            }
            | Error::Interrupted { signal } => u8::try_from(128 + signal).unwrap_or(1),
            // The status 1 of a comparison is a verdict.
            Error::Refused { .. } | Error::Option { .. } | Error::NotCompared(_) => 2,
            Error::JobTimeout { .. } => 124,
            _ => 1,
        }
    }
}

/// What to do without the downloaded toolchain.
struct OwnToolchain;

impl fmt::Display for OwnToolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\nWithout it: install a CUDA toolkit 12.8 to 13.0 and name it with CUDA_HOME (or its nvcc \
            with WARPWEAVE_NVCC), and name a CUTLASS 4.2 checkout with WARPWEAVE_CUTLASS",
        )
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    pub fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => End::Code(status.into_raw()),
        }
    }

    /// Whether a rank that did its work ends so.
    pub fn is_success(self) -> bool {
        self == End::Code(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Code(code) => write!(f, "exited with status {code}"),
            End::Signal(signal) => write!(f, "was killed by {}", SignalName(*signal)),
        }
    }
}

/// A signal, printed with its name.
#[derive(Clone, Copy, Debug)]
pub struct SignalName(pub i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => write!(f, "{name} (signal {})", self.0),
            None => write!(f, "signal {}", self.0),
        }
    }
}
