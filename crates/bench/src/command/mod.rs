//! What the binary's subcommands do.

mod bench;
mod choice;
mod compare;
mod device;
mod exit;
mod measure;
mod measured;
mod part;
mod plan;
mod report;
mod timeline;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

/// Runs the command of this process's arguments. Success means that everything was right.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_new(&cli.log).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let outcome = match &cli.command {
        Command::Bench(args) if args.list => bench::list(args, &mut std::io::stdout().lock()),
        Command::Bench(args) => bench::bench(args),
        Command::Measure(args) => measure::measure(args),
        Command::Timeline(args) => timeline::timeline(args),
        Command::Report(args) => report::report(args, &mut std::io::stdout().lock()),
        Command::Plan(command) => plan::plan(command, &mut std::io::stdout().lock()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => exit::fail(&error),
    }
}
