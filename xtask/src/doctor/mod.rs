//! Examines a machine and reports the findings.

mod compilers;
mod devices;
mod libraries;
mod machine;

use std::fmt;

use crate::place;

/// Examines everything that a part of Warpweave uses. Loads no CUDA library and changes nothing.
pub fn examine() -> Report {
    // In a bundle there is no workspace, and what is only needed to build is of no interest.
    let root = place::workspace().ok();
    let mut findings = machine::examine();
    if let Some(root) = &root {
        findings.extend(compilers::examine(&place::target_directory(root)));
    }
    findings.extend(devices::examine());
    findings.extend(libraries::examine(root.map(|root| place::toolchain(&root))));
    Report(findings)
}

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
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

/// The answer about one thing.
type Finding = (&'static str, Use, Answer);

/// All findings, and what they allow.
#[derive(Debug)]
pub struct Report(Vec<Finding>);

impl Report {
    fn of(&self, needed_for: Use) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(move |(_, of, _)| *of == needed_for)
    }

    /// Whether all that this use needs is there.
    pub fn allows(&self, needed_for: Use) -> bool {
        self.of(needed_for).next().is_some() && self.missing(needed_for).is_empty()
    }

    pub fn missing(&self, needed_for: Use) -> Vec<String> {
        let mut all = self.of(needed_for).collect::<Vec<_>>();
        all.retain(|(_, _, answer)| answer.state == State::Missing);
        let told = all
            .iter()
            .map(|(name, _, answer)| format!("{name} ({})", answer.found));
        told.collect()
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
            writeln!(
                f,
                "{mark:7}  {needed_for:12}  {name:width$}  {}",
                answer.found
            )?;
            if let Some(advice) = &answer.advice {
                writeln!(f, "{:width$}  -> {advice}", "", width = 23 + width)?;
            }
        }
        let host = self.allows(Use::Host);
        writeln!(f)?;
        for (what, can) in [
            ("Jobs run on the processors:", host),
            (
                "Device code can be built:",
                self.allows(Use::DeviceCode) && self.allows(Use::Build),
            ),
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
            (
                "nvcc",
                Use::DeviceCode,
                doubtful("13.1", "newer than the driver"),
            ),
            (
                "mpirun",
                Use::Optional,
                missing("not in PATH", "install Open MPI"),
            ),
            ("libcuda", Use::Cuda, cuda),
        ])
    }

    #[test]
    fn only_what_a_use_needs_decides_about_it() {
        let without = report(missing("not found", "install the driver"));
        for (needed_for, expected) in [
            (Use::Host, true),
            (Use::Build, true),
            (Use::DeviceCode, true),
            (Use::Cuda, false),
        ] {
            assert_eq!(without.allows(needed_for), expected, "{needed_for:?}");
        }
        assert_eq!(without.missing(Use::Cuda), ["libcuda (not found)"]);
        assert!(report(present("580")).allows(Use::Cuda));
        assert!(
            !Report(Vec::new()).allows(Use::Host),
            "nothing was looked at"
        );
    }
}
