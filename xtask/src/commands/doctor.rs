//! `cargo xtask doctor`: what this machine has, what is missing and how to get it; with `--measure`, its
//! figures.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use super::warpweave;
use crate::device::Asked;
use crate::doctor::{self, Use};
use crate::error::{Error, Result};
use crate::launch::JobOptions;

#[derive(Debug, clap::Args)]
// Every option says how to measure.
#[command(mut_args(|arg| match arg.get_id() == "measure" {
    true => arg,
    false => arg.requires("measure"),
}))]
pub struct Options {
    /// Measure this machine instead, and print it as `plan simulate --machine` takes it
    #[arg(long)]
    measure: bool,
    /// Write the measured machine to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    job: JobOptions,
}

/// Prints the findings. Succeeds where the host backend can run: what only GPUs need may be missing.
pub fn run(options: &Options) -> Result<()> {
    if options.measure {
        let out = options.out.iter();
        let args = out.flat_map(|out| [OsString::from("--out"), out.into()]);
        return warpweave::start("measure", options.asked, &options.job, args.collect());
    }
    let report = doctor::examine();
    // A reader that closes the pipe, as `head` does, is no error.
    let _ = write!(io::stdout(), "{report}");
    if report.allows(Use::Host) {
        return Ok(());
    }
    let missing = report.missing(Use::Host).join(", ");
    Err(Error::failed(format!(
        "the host backend cannot run here: {missing}"
    )))
}
