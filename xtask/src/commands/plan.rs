//! `cargo xtask plan`: hands plans to the program that knows them.

use std::ffi::OsString;

use crate::error::Result;
use crate::program;

/// The options of `plan`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// As `show ALGORITHM`, `check all` or `simulate ALGORITHM --machine h200x4`; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "show|check|simulate|trace …"
    )]
    words: Vec<OsString>,
}

/// Becomes `warpweave plan` with the same words. Plans are data: no device code is built for them.
pub fn run(options: &Options) -> Result<()> {
    program::become_warpweave("plan", &options.words)
}
