//! `cargo xtask doctor`: what this machine has, what is missing and how to get it.

use std::io::{self, Write};

use crate::doctor::{self, Report};
use crate::error::{Error, Result};

/// The options of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the findings. Succeeds where the host backend can run: what only GPUs need may be missing.
///
/// # Errors
/// [`Error::Unfit`].
pub fn run(options: &Options) -> Result<()> {
    let report = doctor::examine();
    let text = if options.json {
        json(&report)?
    } else {
        report.to_string()
    };
    // A reader that has seen enough, as `head`, is no failure of the examination.
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
    if report.host_backend {
        return Ok(());
    }
    Err(Error::Unfit {
        missing: report.missing(doctor::Use::Host).join(", "),
    })
}

fn json(report: &Report) -> Result<String> {
    serde_json::to_string_pretty(report)
        .map_err(|error| Error::file("cannot write", "the report")(error.into()))
}
