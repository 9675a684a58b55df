//! What a report says of times, read back from its JSON file.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Document;
use crate::error::{ReportError, Result};
use crate::file;
use crate::model::{Kind, Metric, Outcome, Row, Status};
use crate::provenance::Provenance;
use crate::view::sentences::ranks;

/// A report of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Name of the suite.
    pub suite: String,
    /// Machine and software of the run.
    pub provenance: Provenance,
    /// The times of all rows that ran, in the order of the report. Those of peers are not ours to track.
    pub times: Vec<Time>,
    /// The rows that were wrong, each with the reason.
    pub wrong: Vec<String>,
}

/// The samples of one kind of time of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// What was computed, of what size, by how many ranks.
    pub problem: String,
    /// The row.
    pub implementation: String,
    /// What was timed: a call, a graph launch, either of several back to back.
    pub what: &'static str,
    /// Milliseconds, each of the slowest rank.
    pub samples: Vec<f64>,
}

impl Time {
    /// Whether it is the same time of another run.
    pub fn is_same(&self, other: &Time) -> bool {
        self.what == other.what
            && self.implementation == other.implementation
            && self.problem == other.problem
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, name, what) = (&self.problem, &self.implementation, self.what);
        write!(f, "{problem}, {name}, {what}")
    }
}

/// What the samples of a row are called in tables.
const KINDS: [(Metric, &str); 4] = [
    (Metric::Single, "call"),
    (Metric::GraphSingle, "graph"),
    (Metric::BackToBack, "calls back to back"),
    (Metric::Graph, "graphs back to back"),
];

impl Saved {
    /// Reads a JSON file of `bench --json` or of a baseline.
    ///
    /// # Errors
    /// [`ReportError::File`]; [`ReportError::Baseline`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = file::read(path)?;
        Self::parse(&text).map_err(|why| ReportError::Baseline {
            path: path.into(),
            why,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document = Document::from_json(text).map_err(|error| format!("no report: {error}"))?;
        let Document::Report(report) = document else {
            return Err("a timeline is no report".into());
        };
        let ran = |row: &Row| row.status == Status::Ok && row.kind != Kind::Peer;
        let mut times = Vec::new();
        for (outcome, row) in report.rows().filter(|(_, row)| ran(row)) {
            for (metric, what) in KINDS {
                let samples = row.samples.of(metric).to_vec();
                times.extend((!samples.is_empty()).then(|| Time {
                    problem: problem(outcome),
                    implementation: row.implementation.clone(),
                    what,
                    samples,
                }));
            }
        }
        if times.is_empty() && report.rows().any(|(_, row)| ran(row)) {
            return Err("it has no samples, as summaries and old reports: measure it again".into());
        }
        let wrong = report.wrong().map(|(outcome, row)| {
            let why = row.reason.as_deref().unwrap_or("no reason known");
            format!("{}, {}: {why}", problem(outcome), row.implementation)
        });
        let wrong = wrong.collect();
        Ok(Self {
            suite: report.suite,
            provenance: report.provenance,
            times,
            wrong,
        })
    }

    /// Whether it has a time that `other` has too.
    pub fn shares_times(&self, other: &Saved) -> bool {
        self.times.iter().any(|time| other.has(time))
    }

    /// What it has and none of `others` has: its whole suite, or some of its times.
    pub fn alone_among(&self, others: &[Saved]) -> Vec<String> {
        let suite = &self.suite;
        let others: Vec<_> = others
            .iter()
            .filter(|other| other.suite == *suite)
            .collect();
        if others.is_empty() {
            return vec![format!("suite {suite}")];
        }
        let times = self.times.iter();
        let alone = times.filter(|time| !others.iter().any(|other| other.has(time)));
        alone.map(|time| format!("{suite}: {time}")).collect()
    }

    /// Whether it has this time of another run.
    fn has(&self, time: &Time) -> bool {
        self.times.iter().any(|own| own.is_same(time))
    }

    /// Fails where two of these files have the same time: which of them counts cannot be known.
    ///
    /// # Errors
    /// [`ReportError::Baseline`].
    pub fn check_distinct(files: &[PathBuf], runs: &[Saved]) -> Result<()> {
        let runs: Vec<_> = files.iter().zip(runs).collect();
        for (i, (path, run)) in runs.iter().enumerate() {
            let earlier = runs[..i]
                .iter()
                .filter(|(_, other)| other.suite == run.suite);
            for (first, other) in earlier {
                if let Some(time) = run.times.iter().find(|time| other.has(time)) {
                    let (suite, first) = (&run.suite, first.display());
                    return Err(ReportError::Baseline {
                        path: path.to_path_buf(),
                        why: format!("{first} has {suite}: {time}, too: name one of the files"),
                    });
                }
            }
        }
        Ok(())
    }
}

fn problem(outcome: &Outcome) -> String {
    let operation = outcome.operation.iter().map(|o| o.to_string());
    let parts = operation.chain([outcome.size(), outcome.dtype.to_string()]);
    let problem = parts.collect::<Vec<_>>().join(" ");
    format!("{problem}, {}", ranks(outcome.world))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PLANS, Report};

    fn parsed(report: &Report) -> Result<Saved, String> {
        Saved::parse(&report.to_json().to_string())
    }

    #[test]
    fn times_of_plans_are_read_and_those_of_peers_are_not() {
        let saved = parsed(&Report::sample()).unwrap();
        let found: Vec<_> = saved
            .times
            .iter()
            .map(|t| (t.implementation.as_str(), t.what, t.samples.len()))
            .collect();
        let name = "baselineCudaAllgatherMatmul";
        assert_eq!(
            found,
            [
                (name, "call", 3),
                (name, "calls back to back", 1),
                (name, "graphs back to back", 1)
            ]
        );
        assert_eq!(
            saved.times[0].problem,
            "all-gather-matmul 64x32x16 f16, 4 ranks"
        );
        assert_eq!(saved.provenance, crate::provenance::Provenance::sample());
    }

    #[test]
    fn times_of_collectives_are_read_by_size() {
        let saved = parsed(&Report::sample_of_collectives()).unwrap();
        assert_eq!(saved.suite, "collectives");
        let last = saved.times.last().unwrap();
        assert_eq!(last.problem, "all-gather 16M bf16, 4 ranks");
        assert!(saved.times.iter().any(|time| time.implementation == "nccl"));
        assert!(saved.times.iter().any(|time| time.what == "graph"));
        let torch = |time: &Time| time.implementation.starts_with("torch");
        assert!(!saved.times.iter().any(torch));
    }

    #[test]
    fn wrong_rows_are_read_with_their_reasons() {
        let mut report = Report::sample();
        let row = &mut report.results[0].rows[0];
        (row.status, row.reason) = (Status::Wrong, Some("3 of 8 elements".into()));
        let saved = parsed(&report).unwrap();
        assert!(saved.times.is_empty());
        let row = "all-gather-matmul 64x32x16 f16, 4 ranks, baselineCudaAllgatherMatmul";
        assert_eq!(saved.wrong, [format!("{row}: 3 of 8 elements")]);
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let fault = |text: &str| Saved::parse(text).unwrap_err();
        assert!(fault("not json").contains("no report"));
        assert!(fault("{}").contains("schema"));
        let newer = fault(r#"{"schema":"warpweave-bench/9"}"#);
        assert!(
            newer.contains("warpweave-bench/9") && newer.contains(PLANS),
            "{newer}"
        );
        assert!(fault(&format!(r#"{{"schema":"{PLANS}"}}"#)).contains("suite"));
        let mut report = Report::sample();
        for row in &mut report.results[0].rows {
            row.samples = Default::default();
        }
        let fault = parsed(&report).unwrap_err();
        assert!(fault.contains("no samples"), "{fault}");
    }
}
