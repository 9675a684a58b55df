//! `cargo xtask`: the commands for people who work on Warpweave.
//!
//! It sets up, builds and launches. Whatever touches a backend or a plan runs in the program `warpweave`, and
//! what reads recorded results in `warpweave-report`: xtask depends on no CUDA crate and starts in a second.

mod bundle;
mod cargo;
mod commands;
mod device;
mod doctor;
mod error;
mod harness;
mod launch;
mod peers;
mod place;
mod process;
mod setup;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

use commands as command;

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
    Setup(command::setup::Options),
    /// List what this machine has, what is missing and how to get it
    Doctor(command::doctor::Options),
    /// Time the implementations, on all GPUs or on four host ranks
    Bench(Box<command::bench::Options>),
    /// List what is slower than in a baseline that `bench --save-baseline` kept
    Compare(command::warpweave::Compare),
    /// Run the tests
    Test(command::test::Options),
    /// Show, check, simulate and choose schedules, as `plan check all`
    Plan(command::warpweave::Arguments),
    /// Run a schedule once and write when each of its operations ran, for Perfetto
    Timeline(command::warpweave::Timeline),
    /// Put results and timelines into one HTML page, as `report bench.json trace.json --out report.html`
    Report(command::warpweave::Arguments),
    /// Put the programs into a folder that runs on a machine without Rust
    Bundle(command::bundle::Options),
    /// Start any program on every rank
    Launch(command::launch::Options),
    /// Build and link a project that has candle: a step of `ci` that runs by name only
    #[command(hide = true)]
    Candle,
    /// Run all checks
    Ci(command::ci::Options),
}

fn main() -> ExitCode {
    let line: CommandLine = parsed(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let done = match line.command {
        Command::Setup(options) => command::setup::run(&options),
        Command::Doctor(options) => command::doctor::run(&options),
        Command::Bench(options) => command::suites::run(&options),
        Command::Compare(options) => command::warpweave::compare(&options),
        Command::Test(options) => command::test::run(&options),
        Command::Plan(options) => command::warpweave::plan(&options),
        Command::Timeline(options) => command::warpweave::timeline(&options),
        Command::Report(options) => command::warpweave::report(&options),
        Command::Bundle(options) => command::bundle::run(&options),
        Command::Launch(options) => command::launch::run(options),
        Command::Candle => command::candle::run(),
        Command::Ci(options) => command::ci::run(&options),
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
fn parsed<P: Parser>(line: impl Iterator<Item = OsString>) -> Result<P, clap::Error> {
    let mut line = line.peekable();
    let mut own: Vec<OsString> = line.by_ref().take(2).collect();
    let commands = P::command();
    let name = own
        .get(1)
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let Some(command) = commands
        .find_subcommand(name)
        .filter(|_| PASS_ON.contains(&name))
    else {
        return P::try_parse_from(own.into_iter().chain(line));
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
    own.extend((others.len() > 1).then_some(others).into_iter().flatten());
    P::try_parse_from(own)
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
