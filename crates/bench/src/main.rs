//! The binary that runs on every rank.

use std::process::ExitCode;

fn main() -> ExitCode {
    warpweave_bench::command::main()
}
