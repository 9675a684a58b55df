//! `cargo xtask compare`: what is slower than it was, by the program that saved both.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::error::{Error, Result};
use crate::place::Place;
use crate::program;

/// The options of `compare`. The status is 0 if nothing is slower, 1 if something is, 2 if there is nothing to compare, 3 if
/// the machines differ.
#[derive(Debug, clap::Args)]
pub struct Options {
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

impl Options {
    fn arguments(&self, baselines: PathBuf) -> Vec<OsString> {
        let folder = self.baselines.clone().unwrap_or(baselines);
        let mut args: Vec<OsString> = vec!["compare".into(), "--baselines".into(), folder.into()];
        if let Some(threshold) = &self.threshold {
            args.extend(["--threshold".into(), threshold.clone()]);
        }
        args.extend(["--".into(), self.old.clone(), self.new.clone()]);
        args
    }
}

/// Becomes `warpweave compare` with the same words. No device is touched, so no device code is built.
///
/// # Errors
/// [`Error::NotCompared`] where there is no such program.
pub fn run(options: &Options) -> Result<()> {
    let found = Place::find().and_then(|place| Ok((program::warpweave(&place, false)?, place)));
    let (program, place) = found.map_err(not_compared)?;
    let source = Command::new(&program)
        .args(options.arguments(place.baselines()))
        .exec();
    Err(not_compared(Error::NotStarted { program, source }))
}

fn not_compared(cause: Error) -> Error {
    Error::NotCompared(Box::new(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_program_gets_the_folder_and_both_names() {
        let line =
            Line::try_parse_from(["compare", "before", "after", "--threshold", "3"]).unwrap();
        let args = line.options.arguments("kept".into());
        let expected = "compare --baselines kept --threshold 3 -- before after";
        assert_eq!(args.join(&OsString::from(" ")), expected);
        assert!(Line::try_parse_from(["compare", "before"]).is_err());
    }
}
