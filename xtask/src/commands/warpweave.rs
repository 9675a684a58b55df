//! Commands of the program `warpweave`: `plan`, `report` and `compare` in one process, `timeline` on every
//! rank.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use super::launch::JobOptions;
use crate::device::Asked;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::program;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Arguments of the program; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    args: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct Timeline {
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    job: JobOptions,
    /// As `pushChunks --shape 8192x3584x8192 --dtype bf16 --machine h200x4 --out trace.json`
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ALGORITHM …"
    )]
    args: Vec<OsString>,
}

/// The options of `compare`. The status is 0 if nothing is slower, 1 if something is, 2 if there is nothing
/// to compare, 3 if the machines differ.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// The old baseline: a name, or the path of a file of `bench --json`
    #[arg(value_name = "A")]
    old: OsString,
    /// The new one
    #[arg(value_name = "B")]
    new: OsString,
    /// How much slower a time may be, in percent [default: 5 on GPUs, 25 on the host]
    #[arg(long, value_name = "PERCENT")]
    threshold: Option<OsString>,
    /// The folder of the baselines [default: target/warpweave/baselines]
    #[arg(long, value_name = "DIR")]
    baselines: Option<PathBuf>,
}

impl Compare {
    fn arguments(&self, baselines: PathBuf) -> Vec<OsString> {
        let folder = self.baselines.clone().unwrap_or(baselines);
        let mut args: Vec<OsString> = vec!["--baselines".into(), folder.into()];
        if let Some(threshold) = &self.threshold {
            args.extend(["--threshold".into(), threshold.clone()]);
        }
        args.extend(["--".into(), self.old.clone(), self.new.clone()]);
        args
    }
}

/// Becomes `warpweave COMMAND` with the same arguments.
pub fn run(command: &str, options: &Arguments) -> Result<()> {
    become_program(command, |_| options.args.clone())
}

/// Becomes `warpweave compare`. A comparison that cannot be made has an error of its own, since status 1 is a
/// verdict.
pub fn compare(options: &Compare) -> Result<()> {
    become_program("compare", |place| options.arguments(place.baselines()))
        .map_err(|cause| Error::NotCompared(Box::new(cause)))
}

/// Starts `warpweave timeline` on every rank.
pub fn timeline(options: &Timeline) -> Result<()> {
    options
        .job
        .start("timeline", options.asked, options.args.iter().cloned())
}

/// No device is touched, so no device code is built. Returns only if the program cannot be started.
fn become_program(command: &str, args: impl FnOnce(&Place) -> Vec<OsString>) -> Result<()> {
    let place = Place::find()?;
    let program = program::warpweave(&place, false)?;
    let source = Command::new(&program)
        .arg(command)
        .args(args(&place))
        .exec();
    Err(Error::not_started(program)(source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Compare,
    }

    #[test]
    fn the_program_gets_the_folder_and_both_names() {
        let line =
            Line::try_parse_from(["compare", "before", "after", "--threshold", "3"]).unwrap();
        let args = line.options.arguments("kept".into());
        let expected = "--baselines kept --threshold 3 -- before after";
        assert_eq!(args.join(&OsString::from(" ")), expected);
        assert!(Line::try_parse_from(["compare", "before"]).is_err());
    }
}
