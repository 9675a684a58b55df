//! `cargo xtask`: the commands for people who work on Warpweave.
//!
//! It sets up, builds and launches. Whatever touches a backend or a plan runs in the program `warpweave`, and
//! what reads recorded results in `warpweave-report`: xtask depends on no CUDA crate and starts in a second.
//! A command is a module with its options and what runs it; those of other programs are in [`mod@warpweave`].

// A full disk is an error and a closed pipe is none: see `output`.
#![deny(clippy::print_stdout)]

mod bench;
mod bundle;
mod candle;
mod cargo;
mod ci;
mod device;
mod doctor;
mod error;
mod harness;
mod launch;
mod output;
mod peers;
mod place;
mod process;
mod setup;
mod test;
mod warpweave;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    about = "Builds, runs and checks Warpweave"
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Provide the pinned nvcc, the CUTLASS headers and, if wanted, run-time libraries
    Setup(setup::Options),
    /// List what this machine has, what is missing and how to get it
    Doctor(doctor::Options),
    /// Time the implementations, on all GPUs or on four host ranks
    Bench(Box<bench::Options>),
    /// List what is slower than in a baseline that `bench --save-baseline` kept
    Compare(warpweave::Compare),
    /// Run the tests
    Test(test::Options),
    /// Show, check, simulate and choose schedules, as `plan check all`
    Plan(warpweave::Arguments),
    /// Run a schedule once and write when each of its operations ran, for Perfetto
    Timeline(warpweave::Timeline),
    /// Put results and timelines into one HTML page, as `report bench.json trace.json --out report.html`
    Report(warpweave::Arguments),
    /// Put the programs into a folder that runs on a machine without Rust
    Bundle(bundle::Options),
    /// Start any program on every rank
    Launch(launch::Options),
    /// Build and link a project that has candle: a step of `ci` that runs by name only
    #[command(hide = true)]
    Candle,
    /// Run all checks
    Ci(ci::Options),
}

fn main() -> ExitCode {
    let line = parsed(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let done = match line.command {
        Command::Setup(options) => setup::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Compare(options) => warpweave::compare(&options),
        Command::Test(options) => test::run(&options),
        Command::Plan(options) => warpweave::plan(&options),
        Command::Timeline(options) => warpweave::timeline(&options),
        Command::Report(options) => warpweave::report(&options),
        Command::Bundle(options) => bundle::run(&options),
        Command::Launch(options) => launch::run(options),
        Command::Candle => candle::run(),
        Command::Ci(options) => ci::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, error::Error::Reported) {
                eprintln!("error: {error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Commands that pass unknown options on to `warpweave`. These may come before or after known ones.
const PASS_ON: [&str; 2] = ["bench", "timeline"];

/// Parses a command line. The options of a command in [`PASS_ON`] are put before `--`, the others after it.
fn parsed(mut line: impl Iterator<Item = OsString>) -> Result<CommandLine, clap::Error> {
    let mut own: Vec<OsString> = line.by_ref().take(2).collect();
    let is_given = |name: &&str| own.get(1).is_some_and(|word| word == name);
    let name = PASS_ON.into_iter().find(is_given);
    let commands = CommandLine::command();
    let Some(command) = name.and_then(|name| commands.find_subcommand(name)) else {
        return CommandLine::try_parse_from(own.into_iter().chain(line));
    };
    let mut others = vec![OsString::from("--")];
    while let Some(word) = line.next() {
        let text = word.to_string_lossy();
        if text == "--" {
            others.extend(line.by_ref());
        } else if text == "-h" || text == "--help" {
            own.push(word);
        } else if let Some(arg) = command.get_arguments().find(|arg| is_option(arg, &text)) {
            let is_alone = text.len() > 2 && !text.starts_with("--") || text.contains('=');
            let takes_next =
                !is_alone && matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
            own.push(word);
            own.extend(takes_next.then(|| line.next()).flatten());
        } else {
            others.push(word);
        }
    }
    if others.len() > 1 {
        own.extend(others);
    }
    CommandLine::try_parse_from(own)
}

/// Whether `text` is the option `arg`, as `--ranks`, `--ranks=4`, `-n` or `-n4`.
fn is_option(arg: &clap::Arg, text: &str) -> bool {
    match text.strip_prefix("--") {
        Some(long) => arg.get_long() == long.split('=').next(),
        None => text
            .strip_prefix('-')
            .is_some_and(|short| arg.get_short() == short.chars().next() && !short.is_empty()),
    }
}
