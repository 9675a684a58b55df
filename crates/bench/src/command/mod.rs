//! What the binary's subcommands do; and what every program needs that runs on the ranks of a job: its device, and its part.

mod baseline;
mod bench;
mod choice;
mod compare;
pub mod device;
mod exit;
mod kept;
mod measure;
mod measured;
pub mod part;
mod plan;
mod report;
mod timeline;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::logging;

/// Runs the command of this process's arguments. Success means that everything was right.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = logging::start(&cli.logging) {
        exit::fail(&error);
    }
    let outcome = match &cli.command {
        Command::Bench(args) if args.list => bench::list(args, &mut std::io::stdout().lock()),
        Command::Bench(args) => match args.peer_problems {
            Some(world) => bench::peer_problems(args, world, &mut std::io::stdout().lock()),
            None => bench::bench(args),
        },
        Command::Measure(args) => measure::measure(args),
        Command::Timeline(args) => timeline::timeline(args),
        Command::Compare(args) => baseline::compare(args, &mut std::io::stdout().lock()),
        Command::Report(args) => report::report(args, &mut std::io::stdout().lock()),
        Command::Plan(command) => plan::plan(command, &mut std::io::stdout().lock()),
    };
    logging::finish();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => exit::fail(&error),
    }
}
