//! `cargo xtask plan` and `report`: commands of the program `warpweave` that touch no device.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::error::{Error, Result};
use crate::place::Place;
use crate::program;

/// What the program is told.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Words for the program; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<OsString>,
}

/// Becomes `warpweave COMMAND` with the same words. No device code is built for it.
///
/// # Errors
/// Build failures; the program cannot be started.
pub fn run(command: &str, options: &Options) -> Result<()> {
    let program = program::warpweave(&Place::find()?, false)?;
    let source = Command::new(&program)
        .arg(command)
        .args(&options.words)
        .exec();
    Err(Error::NotStarted { program, source })
}
