//! `cargo xtask plan`: hands plans to the program that knows them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Error, Result};
use crate::place::Place;
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
    let program = program::warpweave(&Place::find()?, false)?;
    let source = Command::new(&program)
        .arg("plan")
        .args(&options.words)
        .exec();
    Err(Error::NotStarted { program, source })
}
