//! `cargo xtask report`: hands files of results to the program that knows them.

use std::ffi::OsString;

use crate::error::Result;
use crate::program;

/// The options of `report`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// As `bench.json timeline.json --out report.html`; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "FILE…"
    )]
    words: Vec<OsString>,
}

/// Becomes `warpweave report` with the same words. No device code is built for it.
pub fn run(options: &Options) -> Result<()> {
    program::become_warpweave("report", &options.words)
}
