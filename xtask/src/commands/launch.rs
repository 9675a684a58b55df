//! `cargo xtask launch`: any program on every rank, as `torchrun` and `mpirun` do it.

use std::ffi::OsString;

use crate::error::{Error, Result};
use crate::launch::{JobOptions, Launch};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Number of ranks
    #[arg(long, short = 'n')]
    ranks: usize,
    #[command(flatten)]
    job: JobOptions,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Runs the program on every rank.
pub fn run(options: Options) -> Result<()> {
    let mut args = options.program.into_iter();
    let program = args
        .next()
        .ok_or_else(|| Error::usage("PROGRAM is missing"))?;
    Launch {
        label: "launch",
        program: program.into(),
        args: args.collect(),
        ranks: options.ranks,
        job: options.job,
    }
    .run()
}
