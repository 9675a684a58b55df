//! The one error type of this crate.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = ReportError> = std::result::Result<T, E>;

/// Why there is no report, or no comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The command line asks for what does not exist.
    #[error("{0}")]
    Usage(String),
    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// No report is kept under a name.
    #[error(
        "no baseline `{name}` in {}: {}; `cargo xtask bench --save-baseline {name}` makes it",
        .root.display(), those(.known)
    )]
    NoBaseline {
        /// The name.
        name: String,
        /// Where it was looked for.
        root: PathBuf,
        /// The names that there are.
        known: Vec<String>,
    },
    /// No report is at a path.
    #[error(
        "no report at {}: name a file of `bench --json`, or a folder of them",
        either(.places)
    )]
    NoReports {
        /// Where it was looked for.
        places: Vec<PathBuf>,
    },
    /// A file is no report that can be compared.
    #[error("{}: {why}", .path.display())]
    Baseline {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Times of different machines say nothing about a change of the program.
    #[error(
        "suite {suite} was measured on different machines: {}; save both baselines on one machine, \
         with as many ranks",
        unlike(.names, .differences)
    )]
    MachinesDiffer {
        /// The suite.
        suite: String,
        /// The baselines.
        names: [String; 2],
        /// What differs, with its value in each.
        differences: Vec<(&'static str, String, String)>,
    },
    /// Standard output is full or closed.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

impl ReportError {
    /// The exit status of a process that this error ends: 2 where the command line asks for what does not
    /// exist, a baseline among others; 3 where baselines of different machines cannot be compared; else 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_)
            | Self::NoBaseline { .. }
            | Self::NoReports { .. }
            | Self::Baseline { .. } => 2,
            Self::MachinesDiffer { .. } => 3,
            Self::File { .. } | Self::Output(_) => 1,
        }
    }

    /// Whether all that went wrong is that nobody reads standard output any more.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }
}

fn those(names: &[String]) -> String {
    match names.is_empty() {
        true => "there is none yet".into(),
        false => format!("there are {}", names.join(", ")),
    }
}

fn either(places: &[PathBuf]) -> String {
    let each: Vec<_> = places
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    each.join(" or ")
}

fn unlike(names: &[String; 2], found: &[(&str, String, String)]) -> String {
    let [a, b] = names;
    let each = found.iter();
    let each = each.map(|(what, old, new)| format!("{what} {old} in {a}, {new} in {b}"));
    each.collect::<Vec<_>>().join("; ")
}
