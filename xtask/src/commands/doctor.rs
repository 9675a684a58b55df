//! `cargo xtask doctor`: what this machine has, what is missing and how to get it; with `--measure`, its
//! figures.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use super::launch::JobOptions;
use crate::device::{Asked, Wanted};
use crate::doctor::{self, Report};
use crate::error::{Error, Result};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Measure this machine instead, and print it as `plan simulate --machine` takes it
    #[arg(long, conflicts_with = "json")]
    measure: bool,
    #[command(flatten)]
    measuring: Measuring,
}

/// How to measure.
#[derive(Debug, Default, clap::Args)]
struct Measuring {
    /// Write the measured machine to this file
    #[arg(long, value_name = "FILE", requires = "measure")]
    out: Option<PathBuf>,
    /// Where to measure: all GPUs where there are some, else four host ranks
    #[arg(long, value_enum, default_value_t, requires = "measure")]
    device: Wanted,
    /// Number of ranks [default: one a GPU, four on the host]
    #[arg(long, short = 'n', requires = "measure")]
    ranks: Option<usize>,
    #[command(flatten)]
    job: JobOptions,
}

/// Prints the findings. Succeeds where the host backend can run: what only GPUs need may be missing.
pub fn run(options: &Options) -> Result<()> {
    if options.measure {
        return measure(&options.measuring);
    }
    let report = doctor::examine();
    let text = if options.json {
        json(&report)?
    } else {
        report.to_string()
    };
    // A reader that closes the pipe, as `head` does, is no error.
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
    if report.host_backend {
        return Ok(());
    }
    Err(Error::Unfit {
        missing: report.missing(doctor::Use::Host).join(", "),
    })
}

/// Starts `warpweave measure` on every rank.
fn measure(options: &Measuring) -> Result<()> {
    let out = options.out.iter();
    let args = out.flat_map(|out| [OsString::from("--out"), out.into()]);
    let asked = Asked {
        device: options.device,
        ranks: options.ranks,
    };
    options.job.start("measure", asked, args)
}

fn json(report: &Report) -> Result<String> {
    serde_json::to_string_pretty(report)
        .map_err(|error| Error::file("cannot write", "the report")(error.into()))
}
