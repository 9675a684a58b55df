//! The program; see the library.

use std::process::ExitCode;

use clap::Parser;
use warpweave_example_llama::command::Arguments;
use warpweave_example_llama::{Error, job};

fn main() -> ExitCode {
    let Err(error) = Arguments::parse().execute() else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    match error {
        Error::Interrupted => ExitCode::from(130),
        error if error.is_of_peer() => ExitCode::from(job::PEER_LOST),
        _ => ExitCode::FAILURE,
    }
}
