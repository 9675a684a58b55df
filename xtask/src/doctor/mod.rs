//! Examines a machine, and reports the findings as text and as JSON.

mod compilers;
mod devices;
mod libraries;
mod machine;
mod probe;

use std::fmt;

use serde::Serialize;

use crate::place;

/// Examines everything that a part of Warpweave uses. Loads no CUDA library and changes nothing.
pub fn examine() -> Report {
    // In a bundle there is no workspace, and what is only needed to build is of no interest.
    let target = place::workspace()
        .ok()
        .map(|root| place::target_directory(&root));
    let toolchain = target
        .as_ref()
        .map(|target| target.join(warpweave_nvcc::layout::TOOLCHAIN));
    let mut findings = machine::examine();
    if let Some(target) = &target {
        findings.extend(compilers::examine(target));
    }
    findings.extend(devices::examine());
    findings.extend(libraries::examine(toolchain.as_deref()));
    findings.extend(devices::launchers());
    let multicast = devices::multicast(|name| std::env::var(name).ok());
    findings.push(multicast.about("multicast", Use::Optional));
    Report::new(findings)
}

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    Host,
    Build,
    DeviceCode,
    Cuda,
    /// Nothing depends on it.
    Optional,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host backend",
            Self::Build => "building",
            Self::DeviceCode => "device code",
            Self::Cuda => "GPUs",
            Self::Optional => "optional",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Present,
    /// Present, with a warning.
    Doubtful,
    Missing,
}

/// The result for one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub needed_for: Use,
    pub state: State,
    /// Version and path, or where it was searched for.
    pub found: String,
    /// How to get or fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// State, what was found, and advice.
#[derive(Debug)]
pub struct Answer(State, String, Option<String>);

pub fn present(found: impl Into<String>) -> Answer {
    Answer(State::Present, found.into(), None)
}

pub fn missing(found: impl Into<String>, advice: impl Into<String>) -> Answer {
    Answer(State::Missing, found.into(), Some(advice.into()))
}

/// Present, with a warning.
pub fn doubtful(found: impl Into<String>, advice: impl Into<String>) -> Answer {
    Answer(State::Doubtful, found.into(), Some(advice.into()))
}

impl Answer {
    /// The finding that this is the answer for.
    pub fn about(self, name: &'static str, needed_for: Use) -> Finding {
        let Self(state, found, advice) = self;
        Finding {
            name,
            needed_for,
            state,
            found,
            advice,
        }
    }
}

/// All findings, and what they allow.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether jobs run on the processors.
    pub host_backend: bool,
    /// Whether device code can be built.
    pub device_code: bool,
    /// Whether jobs run on GPUs; the device code may come from another machine.
    pub cuda_backend: bool,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn new(findings: Vec<Finding>) -> Self {
        let has = |needed_for| {
            let mut of = findings
                .iter()
                .filter(|finding| finding.needed_for == needed_for)
                .peekable();
            of.peek().is_some() && of.all(|finding| finding.state != State::Missing)
        };
        let host_backend = has(Use::Host);
        Self {
            host_backend,
            device_code: has(Use::DeviceCode) && has(Use::Build),
            cuda_backend: host_backend && has(Use::Cuda),
            findings,
        }
    }

    pub fn missing(&self, needed_for: Use) -> Vec<String> {
        self.findings
            .iter()
            .filter(|finding| finding.needed_for == needed_for && finding.state == State::Missing)
            .map(|finding| format!("{} ({})", finding.name, finding.found))
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .findings
            .iter()
            .map(|finding| finding.name.chars().count())
            .max()
            .unwrap_or(0);
        for finding in &self.findings {
            let mark = match finding.state {
                State::Present => "ok",
                State::Doubtful => "note",
                State::Missing if finding.needed_for == Use::Optional => "-",
                State::Missing => "MISSING",
            };
            writeln!(
                f,
                "{mark:7}  {:12}  {:width$}  {}",
                finding.needed_for, finding.name, finding.found
            )?;
            if let Some(advice) = &finding.advice {
                writeln!(f, "{:7}  {:12}  {:width$}  -> {advice}", "", "", "")?;
            }
        }
        let answer = |can: bool| if can { "yes" } else { "no" };
        writeln!(f)?;
        writeln!(
            f,
            "Jobs run on the processors:  {}",
            answer(self.host_backend)
        )?;
        writeln!(
            f,
            "Device code can be built:    {}",
            answer(self.device_code)
        )?;
        writeln!(
            f,
            "Jobs run on GPUs:            {}",
            answer(self.cuda_backend)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cuda: Finding) -> Report {
        Report::new(vec![
            present("24 GB").about("memory", Use::Host),
            present("1.95.0").about("rustc", Use::Build),
            doubtful("13.1", "newer than the driver").about("nvcc", Use::DeviceCode),
            missing("not in PATH", "install Open MPI").about("mpirun", Use::Optional),
            cuda,
        ])
    }

    #[test]
    fn only_what_a_use_needs_decides_about_it() {
        let without =
            report(missing("not found", "install the driver").about("libcuda", Use::Cuda));
        assert!(without.host_backend && without.device_code && !without.cuda_backend);
        assert_eq!(without.missing(Use::Cuda), ["libcuda (not found)"]);
        assert!(report(present("580").about("libcuda", Use::Cuda)).cuda_backend);
        assert!(
            !Report::new(Vec::new()).host_backend,
            "nothing was looked at"
        );
    }

    #[test]
    fn people_see_the_advice_below_its_finding() {
        let text = report(missing("not found", "install the driver").about("libcuda", Use::Cuda))
            .to_string();
        let lines: Vec<&str> = text.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.contains("libcuda"))
            .unwrap();
        assert!(
            lines[at].starts_with("MISSING  GPUs ")
                && lines[at + 1].ends_with("-> install the driver"),
            "{text}"
        );
        assert!(text.contains("Jobs run on GPUs:            no"), "{text}");
    }

    #[test]
    fn programs_see_the_same() {
        let json =
            serde_json::to_value(report(present("580").about("libcuda", Use::Cuda))).unwrap();
        assert_eq!(json["cuda_backend"], true);
        assert_eq!(json["findings"][2]["needed_for"], "device-code");
        assert_eq!(json["findings"][2]["state"], "doubtful");
        assert!(json["findings"][0].get("advice").is_none());
    }
}
