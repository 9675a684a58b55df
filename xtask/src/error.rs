//! What can go wrong in a command, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::setup::Cause;

/// The result of a command or of a step of one.
pub type Result<T> = std::result::Result<T, Error>;

/// Every way in which a command of xtask fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no cargo to build with.
    #[error(
        "cannot run `{program}`: {source}; install Rust from https://rustup.rs, or run a bundle made with `cargo xtask bundle DIR`"
    )]
    CargoMissing {
        /// What was started.
        program: PathBuf,
        /// Why it did not start.
        source: io::Error,
    },

    /// Neither a workspace around the current directory nor a bundle around the program.
    #[error("no Warpweave workspace at or above {} and no bundle.json beside this program", .from.display())]
    NoWorkspace {
        /// Where the search began.
        from: PathBuf,
    },

    /// A build, whose compiler output has already been shown.
    #[error("`{command}` failed with {status}: the compiler's messages are above")]
    BuildFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },

    /// A build that succeeded and left out what was asked for.
    #[error("`{command}` made no `{wanted}`")]
    NotBuilt {
        /// The command line.
        command: String,
        /// The missing target.
        wanted: String,
    },

    /// A tool that was started and said no.
    #[error("`{command}` failed with {status}")]
    CommandFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
    },

    /// A program that could not be started.
    #[error("cannot run {}: {source}", .program.display())]
    NotStarted {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },

    /// A file operation.
    #[error("{what} {}: {source}", .path.display())]
    File {
        /// What was being done, as "cannot write".
        what: &'static str,
        /// To which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },

    /// No room for the logs of a job.
    #[error("no space for logs in {}: {available} bytes left, {needed} needed; free some, or choose another folder with --logs DIR", .path.display())]
    LogSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes left.
        available: u64,
        /// Bytes that a job keeps in reserve.
        needed: u64,
    },

    /// A port for the store that somebody else listens on.
    #[error(
        "port {port} on 127.0.0.1 cannot be used for the store: {source}; leave --port out to take a free one"
    )]
    Port {
        /// The port; 0 where the system was asked for a free one.
        port: u16,
        /// The system's answer.
        source: io::Error,
    },

    /// More ranks than the machine or the program can have.
    #[error("{asked} ranks asked for: {limit}")]
    Ranks {
        /// The number given to --ranks.
        asked: usize,
        /// What stands against it.
        limit: String,
    },

    /// CUDA was asked for where there is none.
    #[error(
        "--device cuda: this machine shows no NVIDIA GPU ({looked}); use --device host, or `cargo xtask doctor` to see what is missing"
    )]
    NoGpu {
        /// Where GPUs were looked for.
        looked: String,
    },

    /// An option that means nothing here.
    #[error("{option}: {why}")]
    Option {
        /// The option.
        option: &'static str,
        /// Why it is refused.
        why: String,
    },

    /// The program that runs on every rank refused its arguments, and has said why.
    #[error("`{program}` refused these options with {status}: its message is above")]
    Refused {
        /// The program's name.
        program: String,
        /// How it ended.
        status: ExitStatus,
    },

    /// A rank ended badly, and so the job.
    #[error("rank {rank} of {world} {end}; its log is {}", .log.display())]
    RankFailed {
        /// The rank that failed first.
        rank: usize,
        /// Ranks in the job.
        world: usize,
        /// Its exit status or signal.
        end: End,
        /// What it wrote.
        log: PathBuf,
    },

    /// Ranks that did not die.
    #[error(
        "ranks {ranks:?} are still there after SIGKILL: the kernel holds them, most likely in a driver call"
    )]
    RanksStuck {
        /// Which ones.
        ranks: Vec<usize>,
    },

    /// A job that took longer than it may.
    #[error("the job did not end within {limit:?} (--timeout); ranks {running:?} were still running, logs are in {}", .logs.display())]
    JobTimeout {
        /// The limit.
        limit: Duration,
        /// The ranks that had not ended.
        running: Vec<usize>,
        /// Where the logs are.
        logs: PathBuf,
    },

    /// Ctrl-C or a request to end.
    #[error("interrupted by {}", SignalName(*.signal))]
    Interrupted {
        /// The signal.
        signal: i32,
    },

    /// Tests that failed.
    #[error("{failed} failed")]
    TestsFailed {
        /// How many, binaries that did not end properly counted as one.
        failed: usize,
    },

    /// Steps of the checks that failed.
    #[error("step `{step}` failed with {status}")]
    StepFailed {
        /// The first step that failed.
        step: &'static str,
        /// How it ended.
        status: ExitStatus,
    },

    /// A bundle that this program cannot use.
    #[error("{}: {why}; make the bundle again with `cargo xtask bundle DIR`", .manifest.display())]
    Bundle {
        /// The marker file.
        manifest: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// No wheels of the toolchain for this processor.
    #[error("there are no pinned wheels for {architecture}{}", OwnToolchain)]
    NoWheels {
        /// The processor's architecture.
        architecture: &'static str,
    },

    /// No Python to download with.
    #[error(
        "no Python 3.8 or newer (tried {tried}): install python3 with pip, or name one with WARPWEAVE_PYTHON{}",
        OwnToolchain
    )]
    NoPython {
        /// The names that were tried.
        tried: String,
    },

    /// A Python without pip.
    #[error(
        "{python} has no pip: install python3-pip, or run `{python} -m ensurepip`{}",
        OwnToolchain
    )]
    NoPip {
        /// The Python.
        python: String,
    },

    /// No Python with PyTorch to time its operators with.
    #[error(
        "--peers torch: no Python with a PyTorch that has symmetric memory (tried {tried}): install PyTorch 2.6 or newer \
         there, name another Python with WARPWEAVE_PYTHON, or give figures that were measured before, by --peers FILE"
    )]
    NoTorch {
        /// The names that were tried.
        tried: String,
    },

    /// pip did not bring the wheels.
    #[error("cannot download {component}: {}; pip said:\n  {said}{}", .cause.advice(), OwnToolchain)]
    Download {
        /// The toolchain's component.
        component: &'static str,
        /// Why, as far as pip tells.
        cause: Cause,
        /// The end of what pip printed.
        said: String,
    },

    /// A wheel that is not the pinned one.
    #[error(
        "{wheel} is not the pinned wheel: SHA-256 should be {expected} and is {found}; do not use it, and check which index pip is using"
    )]
    WheelHash {
        /// Name and version.
        wheel: String,
        /// The pinned hash.
        expected: &'static str,
        /// The hashes of what came instead.
        found: String,
    },

    /// No room for the toolchain.
    #[error("no space for the toolchain in {}: about {} MB are needed{}; free some, or move the target directory with CARGO_TARGET_DIR", .path.display(), .needed / 1_000_000, .available.map(|bytes| format!(", {} MB are left", bytes / 1_000_000)).unwrap_or_default())]
    ToolchainSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes left, where they were counted.
        available: Option<u64>,
    },

    /// Wheels that did not become a usable component.
    #[error("cannot make {component} of its wheels: {why}{}", OwnToolchain)]
    Unpack {
        /// The toolchain's component.
        component: &'static str,
        /// What is wrong.
        why: String,
    },

    /// Another setup that does not end.
    #[error("another `cargo xtask setup` has held {} for {} s: end it and start again", .path.display(), .limit.as_secs())]
    SetupBusy {
        /// The lock.
        path: PathBuf,
        /// How long this one waited.
        limit: Duration,
    },

    /// A comparison that did not take place, and so found nothing slower.
    #[error(transparent)]
    NotCompared(Box<Error>),

    /// A machine that cannot run the host backend.
    #[error("the host backend cannot run here: {missing}")]
    Unfit {
        /// What it lacks.
        missing: String,
    },
}

impl Error {
    /// Wraps the failure of a file operation.
    pub fn file(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::File { what, path, source }
    }

    /// Whether the command has already said it, in a last line that must stay the last.
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

/// The way around a toolchain that cannot be downloaded.
struct OwnToolchain;

impl fmt::Display for OwnToolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "\nWithout it: install a CUDA toolkit 12.8 to 13.0 and name it with CUDA_HOME (or its nvcc with WARPWEAVE_NVCC), \
             and name a CUTLASS 4.2 checkout with WARPWEAVE_CUTLASS",
        )
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl End {
    /// Reads the kernel's account.
    pub fn of(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, Some(signal)) => End::Signal(signal),
            (None, None) => End::Code(status.into_raw()),
        }
    }

    /// Whether it is what a rank that did its work leaves.
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

/// A signal with the name that people know it by.
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
