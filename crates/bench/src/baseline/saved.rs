//! What a report says of times, read back from its JSON file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::collectives::Bytes;
use crate::collectives::report::SCHEMA as COLLECTIVES;
use crate::error::{BenchError, Result};
use crate::provenance::Provenance;
use crate::report::SCHEMA as PLANS;
use crate::shape::Shape;

/// A report of a suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The file that it was read from.
    pub path: PathBuf,
    /// The suite.
    pub suite: String,
    /// Machine and software of the run.
    pub provenance: Provenance,
    /// The times of all rows that ran, in the order of the report. Those of peers are not ours to track.
    pub times: Vec<Time>,
}

/// The samples of one kind of time of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// What was computed, of what size, by how many ranks.
    pub problem: String,
    /// The row.
    pub implementation: String,
    /// What was timed: a call, a graph launch, either of several in a row.
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

/// The fields of `samples` in a row, and what each is called in tables.
const KINDS: [(&str, &str); 4] = [
    ("single_ms", "call"),
    ("graph_single_ms", "graph"),
    ("back_to_back_ms", "in a row"),
    ("graph_ms", "graphs in a row"),
];

#[derive(Deserialize)]
struct Report {
    suite: String,
    provenance: Provenance,
    results: Vec<Outcome>,
}

/// A problem, or an operation at a size.
#[derive(Deserialize)]
struct Outcome {
    operation: Option<String>,
    shape: Option<Shape>,
    size: Option<usize>,
    dtype: String,
    world: usize,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    implementation: String,
    kind: String,
    status: String,
    #[serde(default)]
    samples: BTreeMap<String, Vec<f64>>,
}

impl Saved {
    /// Reads a JSON file of `bench --json` or of a baseline.
    ///
    /// # Errors
    /// [`BenchError::File`]; [`BenchError::Baseline`] for what is no report, of a layout that this program does not know, or
    /// from before samples were kept.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|source| BenchError::File {
            path: path.into(),
            source,
        })?;
        Self::parse(&text, path).map_err(|why| BenchError::Baseline {
            path: path.into(),
            why,
        })
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layout {
            schema: String,
        }
        // First the layout: of another one the fields may be anything.
        let layout: Layout =
            serde_json::from_slice(text).map_err(|error| format!("no report: {error}"))?;
        if ![PLANS, COLLECTIVES].contains(&layout.schema.as_str()) {
            return Err(format!(
                "its schema is `{}`, and this program reads {PLANS} and {COLLECTIVES}: measure it again",
                layout.schema
            ));
        }
        let report: Report = serde_json::from_slice(text)
            .map_err(|error| format!("no {}: {error}", layout.schema))?;
        let ran = |row: &&Row| row.status == "ok" && row.kind != "peer";
        let mut times = Vec::new();
        for outcome in &report.results {
            let problem = outcome.problem();
            for row in outcome.rows.iter().filter(ran) {
                let mut samples = row.samples.clone();
                let kept = KINDS.map(|(field, what)| Some((what, samples.remove(field)?)));
                for (what, samples) in kept.into_iter().flatten() {
                    times.push(Time {
                        problem: problem.clone(),
                        implementation: row.implementation.clone(),
                        what,
                        samples,
                    });
                }
            }
        }
        let rows = report.results.iter().flat_map(|outcome| &outcome.rows);
        if times.is_empty() && rows.clone().any(|row| ran(&row)) {
            return Err("it has no samples, as reports of older versions: measure it again".into());
        }
        Ok(Self {
            path: path.into(),
            suite: report.suite,
            provenance: report.provenance,
            times,
        })
    }
}

impl Outcome {
    fn problem(&self) -> String {
        let operation = self.operation.iter().cloned();
        let shape = self.shape.iter().map(Shape::to_string);
        let size = self.size.iter().map(|&size| Bytes(size).to_string());
        let ranks = match self.world {
            1 => "1 rank".to_owned(),
            world => format!("{world} ranks"),
        };
        let words = operation.chain(shape).chain(size);
        let words = words.chain([format!("{}, {ranks}", self.dtype)]);
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::report::Report as OfCollectives;
    use crate::report::Report as OfPlans;

    fn parsed(report: &impl serde::Serialize) -> Result<Saved, String> {
        Saved::parse(&serde_json::to_vec(report).unwrap(), Path::new("x.json"))
    }

    #[test]
    fn times_of_plans_are_read_and_those_of_peers_are_not() {
        let saved = parsed(&OfPlans::sample()).unwrap();
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
                (name, "in a row", 1),
                (name, "graphs in a row", 1)
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
        let saved = parsed(&OfCollectives::sample()).unwrap();
        assert_eq!(saved.suite, "collectives");
        let last = saved.times.last().unwrap();
        assert_eq!(last.problem, "all-gather 16M bf16, 4 ranks");
        assert!(saved.times.iter().any(|time| time.implementation == "nccl"));
        assert!(saved.times.iter().any(|time| time.what == "graph"));
        let torch = |time: &Time| time.implementation.starts_with("torch");
        assert!(!saved.times.iter().any(torch));
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let fault = |text: &str| Saved::parse(text.as_bytes(), Path::new("x")).unwrap_err();
        assert!(fault("not json").contains("no report"));
        assert!(fault("{}").contains("schema"));
        let newer = fault(r#"{"schema":"warpweave-bench/9"}"#);
        assert!(
            newer.contains("warpweave-bench/9") && newer.contains(PLANS),
            "{newer}"
        );
        assert!(fault(&format!(r#"{{"schema":"{PLANS}"}}"#)).contains("suite"));
        let mut report = OfPlans::sample();
        for row in &mut report.results[0].rows {
            row.samples = Default::default();
        }
        let fault = parsed(&report).unwrap_err();
        assert!(fault.contains("no samples"), "{fault}");
    }
}
