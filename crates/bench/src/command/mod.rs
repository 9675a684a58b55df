//! The subcommands of the binary.

mod bench;
mod choice;
mod measure;
mod plan;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::{job, logging};

/// Runs the command of this process's arguments. Success means that everything was right.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = logging::start(&cli.logging) {
        job::fail(&error);
    }
    let out = &mut std::io::stdout();
    let outcome = match &cli.command {
        Command::Bench(args) if args.list => bench::list(args, out),
        Command::Bench(args) => match args.peer_problems {
            Some(world) => bench::peer_problems(args, world, out),
            None => bench::bench(args),
        },
        Command::Measure(args) => measure::measure(args),
        Command::Timeline(args) => plan::timeline(args),
        Command::Recorded(command) => command.run(out).map_err(Into::into),
        Command::Plan(command) => plan::plan(command, out),
    };
    logging::finish();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => job::fail(&error),
    }
}
