//! `cargo xtask doctor`: what this machine has, what is missing and how to get it; with `--measure`, its
//! figures.

mod compilers;
mod devices;
mod libraries;
mod machine;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::device::Asked;
use crate::error::{Error, Result};
use crate::launch::JobOptions;
use crate::output::print;
use crate::{cargo, setup, warpweave};

#[derive(Debug, clap::Args)]
// Every option says how to measure.
#[command(mut_args(|arg| match arg.get_id() == "measure" {
    true => arg,
    false => arg.requires("measure"),
}))]
pub struct Options {
    /// Measure this machine instead, and print it as `plan simulate --machine` takes it
    #[arg(long)]
    measure: bool,
    /// Write the measured machine to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    job: JobOptions,
}

/// Prints the findings. Succeeds where the host backend can run: what only GPUs need may be missing.
pub fn run(options: &Options) -> Result<()> {
    if options.measure {
        let out = options.out.iter();
        let args = out.flat_map(|out| [OsString::from("--out"), out.into()]);
        return warpweave::start("measure", options.asked, &options.job, args.collect());
    }
    let report = examine();
    print(&report)?;
    if report.allows(Use::Host) {
        return Ok(());
    }
    let missing = report.missing(Use::Host).join(", ");
    let why = format!("the host backend cannot run here: {missing}");
    Err(Error::Failed(why))
}

/// Examines everything that a part of Warpweave uses. Loads no CUDA library and changes nothing.
pub fn examine() -> Report {
    // In a bundle there is no workspace, and what is only needed to build is of no interest.
    let root = cargo::workspace().ok();
    let mut findings = machine::examine();
    if let Some(root) = &root {
        findings.extend(compilers::examine(&cargo::target_directory(root)));
    }
    findings.extend(devices::examine());
    findings.extend(libraries::examine(root.map(|root| setup::toolchain(&root))));
    Report(findings)
}

/// The run-time libraries that this machine lacks, each with what that means and what to do.
pub fn missing_libraries() -> Vec<String> {
    let root = cargo::workspace().ok();
    let found = libraries::examine(root.map(|root| setup::toolchain(&root)));
    let missing = found
        .into_iter()
        .filter(|(.., answer)| answer.state == State::Missing);
    let told = missing.map(|(name, _, Answer { found, advice, .. })| {
        let advice = advice.unwrap_or_default();
        format!("no {name} ({found}): what needs it is not measured; {advice}")
    });
    told.collect()
}

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Host,
    Build,
    DeviceCode,
    Cuda,
    /// Nothing depends on it.
    Optional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Present,
    /// Present, with a warning.
    Doubtful,
    Missing,
}

/// What was found, and advice.
#[derive(Debug)]
struct Answer {
    state: State,
    /// Version and path, or where it was searched for.
    found: String,
    /// How to get or fix it.
    advice: Option<String>,
}

fn present(found: impl Into<String>) -> Answer {
    Answer {
        state: State::Present,
        found: found.into(),
        advice: None,
    }
}

fn missing(found: impl Into<String>, advice: impl Into<String>) -> Answer {
    Answer {
        state: State::Missing,
        ..doubtful(found, advice)
    }
}

/// Present, with a warning.
fn doubtful(found: impl Into<String>, advice: impl Into<String>) -> Answer {
    Answer {
        state: State::Doubtful,
        found: found.into(),
        advice: Some(advice.into()),
    }
}

type Finding = (&'static str, Use, Answer);

#[derive(Debug)]
pub struct Report(Vec<Finding>);

impl Report {
    fn of(&self, needed_for: Use) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(move |(_, of, _)| *of == needed_for)
    }

    /// Whether all that this use needs is there.
    fn allows(&self, needed_for: Use) -> bool {
        self.of(needed_for).next().is_some() && self.missing(needed_for).is_empty()
    }

    fn missing(&self, needed_for: Use) -> Vec<String> {
        let mut missing = Vec::new();
        for (name, _, answer) in self.of(needed_for) {
            if answer.state == State::Missing {
                missing.push(format!("{name} ({})", answer.found));
            }
        }
        missing
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.0.iter().map(|(name, ..)| name.len());
        let width = widths.max().unwrap_or(0);
        for (name, needed_for, answer) in &self.0 {
            let mark = match answer.state {
                State::Present => "ok",
                State::Doubtful => "note",
                State::Missing if *needed_for == Use::Optional => "-",
                State::Missing => "MISSING",
            };
            let needed_for = match needed_for {
                Use::Host => "host backend",
                Use::Build => "building",
                Use::DeviceCode => "device code",
                Use::Cuda => "GPUs",
                Use::Optional => "optional",
            };
            let found = &answer.found;
            writeln!(f, "{mark:7}  {needed_for:12}  {name:width$}  {found}")?;
            if let Some(advice) = &answer.advice {
                writeln!(f, "{:width$}  -> {advice}", "", width = 23 + width)?;
            }
        }
        let host = self.allows(Use::Host);
        let device_code = self.allows(Use::DeviceCode) && self.allows(Use::Build);
        writeln!(f)?;
        for (what, can) in [
            ("Jobs run on the processors:", host),
            ("Device code can be built:", device_code),
            // The device code may come from another machine.
            ("Jobs run on GPUs:", host && self.allows(Use::Cuda)),
        ] {
            writeln!(f, "{what:27}  {}", if can { "yes" } else { "no" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cuda: Answer) -> Report {
        Report(vec![
            ("memory", Use::Host, present("24 GB")),
            ("rustc", Use::Build, present("1.95.0")),
            ("nvcc", Use::DeviceCode, doubtful("13.1", "too new")),
            ("mpirun", Use::Optional, missing("none", "install it")),
            ("libcuda", Use::Cuda, cuda),
        ])
    }

    #[test]
    fn only_what_a_use_needs_decides_about_it() {
        let without = report(missing("not found", "install the driver"));
        for allowed in [Use::Host, Use::Build, Use::DeviceCode] {
            assert!(without.allows(allowed), "{allowed:?}");
        }
        assert!(!without.allows(Use::Cuda));
        assert_eq!(without.missing(Use::Cuda), ["libcuda (not found)"]);
        assert!(report(present("580")).allows(Use::Cuda));
        // Nothing was looked at.
        assert!(!Report(Vec::new()).allows(Use::Host));
    }
}
