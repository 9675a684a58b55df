//! What the binary's subcommands do.

mod bench;
mod device;
mod plan;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::error::BenchError;

/// Runs the command of this process's arguments. Success means that everything was right.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let rank = std::env::var("WARPWEAVE_RANK").ok();
    let filter = EnvFilter::try_new(&cli.log).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let outcome = match &cli.command {
        Command::Bench(args) if args.list => bench::list(args, &mut std::io::stdout().lock()),
        Command::Bench(args) => bench::bench(args),
        Command::Plan(command) => plan::plan(command, &mut std::io::stdout().lock()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of the report has gone, and knows.
        Err(BenchError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::FAILURE
        }
        Err(error) => {
            let who = rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
            // With standard error gone too, the exit code is all that is left.
            let _ = writeln!(std::io::stderr(), "error{who}: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}
