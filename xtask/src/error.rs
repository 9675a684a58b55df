//! What can go wrong in a command, and the exit status that says so.

use std::ffi::OsStr;
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
    /// What needs no other reaction than its message.
    #[error("{0}")]
    Failed(String),

    /// Options that cannot be followed. A comparison has this too, since status 1 is a verdict there.
    #[error("{0}")]
    Usage(String),

    /// A call of the system. The message of a file operation names the path, as fs-err gives it.
    #[error(transparent)]
    File(#[from] io::Error),

    #[error("rank {rank} of {world} {end}; its log is {}", .log.display())]
    RankFailed {
        rank: usize,
        world: usize,
        end: End,
        log: PathBuf,
    },

    #[error("the job did not end within {limit:?} (--timeout); ranks {running:?} were still running, \
         logs are in {}", .logs.display())]
    JobTimeout {
        limit: Duration,
        running: Vec<usize>,
        logs: PathBuf,
    },

    #[error("cannot write to standard output: {cause}; the log of rank 0 is {}", .log.display())]
    Output { cause: String, log: PathBuf },

    #[error("interrupted by {}", SignalName(*.0))]
    Interrupted(i32),

    /// What the command has already printed, in a last line that must stay the last.
    #[error("tests or steps failed")]
    Reported,
}

impl Error {
    pub fn usage(message: impl Into<String>) -> Self {
        Error::Usage(message.into())
    }

    /// Wraps the failure to start a program.
    pub fn not_started(program: impl AsRef<OsStr>) -> impl FnOnce(io::Error) -> Error {
        let program = Path::new(program.as_ref()).display().to_string();
        move |source| Error::Failed(format!("cannot run {program}: {source}"))
    }

    /// The exit code of the process: a rank's own, 128 and the signal where one ended it, 124 where its time
    /// was over, else 1.
    pub fn exit_code(&self) -> u8 {
        let end = match *self {
            Error::RankFailed { end, .. } => end,
            Error::Interrupted(signal) => End::Signal(signal),
            Error::Usage(_) => End::Code(2),
            Error::JobTimeout { .. } => End::Code(124),
            _ => End::Code(1),
        };
        let code = match end {
            End::Code(code) => code.max(1),
            End::Signal(signal) => 128 + signal,
            End::Overdue(_) => 124,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
    /// By the launcher, since it outlived the grace.
    Overdue(Duration),
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status.signal() {
            Some(signal) => End::Signal(signal),
            None => End::Code(status.code().unwrap_or(-1)),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Code(code) => write!(f, "exited with status {code}"),
            End::Signal(signal) => write!(f, "was killed by {}", SignalName(*signal)),
            End::Overdue(grace) => write!(f, "did not end within {grace:?} (--grace)"),
        }
    }
}

/// A signal, printed with its name.
pub struct SignalName(pub i32);

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => write!(f, "{name} (signal {})", self.0),
            None => write!(f, "signal {}", self.0),
        }
    }
}
