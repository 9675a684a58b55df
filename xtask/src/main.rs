//! `cargo xtask`: the commands for people who work on Warpweave.
//!
//! It sets up, builds, launches and compares. Whatever touches a backend or a plan runs in the program
//! `warpweave`, so that xtask depends on no CUDA crate and starts in a second.

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
mod program;
mod setup;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    let done = match CommandLine::parse().command {
        Command::Setup(options) => command::setup::run(&options),
        Command::Doctor(options) => command::doctor::run(&options),
        Command::Bench(options) => command::bench::run(&options),
        Command::Compare(options) => command::warpweave::compare(&options),
        Command::Test(options) => command::test::run(&options),
        Command::Plan(options) => command::warpweave::run("plan", &options),
        Command::Timeline(options) => command::warpweave::timeline(&options),
        Command::Report(options) => command::warpweave::run("report", &options),
        Command::Bundle(options) => command::bundle::run(&options),
        Command::Launch(options) => command::launch::run(options),
        Command::Candle => command::candle::run(),
        Command::Ci(options) => command::ci::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is_told() {
                eprintln!("error: {error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}
