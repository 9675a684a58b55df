//! `warpweave-report`: the commands `compare` and `report` of `warpweave`, built without the layers.

use std::process::ExitCode;

use clap::Parser;
use warpweave_report::command::Command;

/// Recorded results: compared with each other, and put into one page.
#[derive(Parser)]
#[command(name = "warpweave-report", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match CommandLine::parse().command.run(&mut std::io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A reader that has closed the pipe needs no message.
            if !error.is_closed_pipe() {
                eprintln!("error: {error}");
            }
            ExitCode::from(error.exit_status())
        }
    }
}
