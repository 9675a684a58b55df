//! Files of earlier runs: reports of every suite, and timelines.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ReportError, Result};
use crate::model::{COLLECTIVES, Outcome, PLANS, Report};
use crate::timeline::Trace;
use crate::{compact, file};

/// What a file holds.
#[derive(Clone, Debug)]
pub enum Document {
    /// A report of a suite.
    Report(Box<Report>),
    /// When operations ran.
    Timelines(Trace),
}

/// Layouts of reports.
const LAYOUTS: [&str; 2] = [PLANS, COLLECTIVES];

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReportError::File`]; [`ReportError::Usage`] for what `bench --json`, `timeline` or `plan trace` did
    /// not write.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_json(&file::read(path)?)
            .map_err(|why| ReportError::Usage(format!("{}: {why}", path.display())))
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
            #[serde(rename = "traceEvents")]
            events: Option<serde::de::IgnoredAny>,
        }
        // First the layout: of another one the fields may be anything.
        let head: Head = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match (head.schema.as_deref(), head.events) {
            (Some(schema), _) if LAYOUTS.contains(&schema) => {
                report(text).map(|found| Document::Report(Box::new(found)))
            }
            (Some(other), _) => Err(format!(
                "its schema is `{other}`, and this program reads {}: measure it again",
                LAYOUTS.join(", ")
            )),
            (None, Some(_)) => serde_json::from_str(text)
                .map(Document::Timelines)
                .map_err(|error| error.to_string()),
            (None, None) => {
                Err("no report of `bench --json`, which has a schema, and no timeline".into())
            }
        }
    }
}

fn report(text: &str) -> Result<Report, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let report = serde_json::from_value(compact::unpack(value));
    let mut report: Report = report.map_err(|error| error.to_string())?;
    let results = report.results.into_iter();
    report.results = results.map(Outcome::compared).collect();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Verdict;

    fn read(text: &str) -> Report {
        match Document::from_json(text).unwrap() {
            Document::Report(report) => *report,
            Document::Timelines(_) => panic!("no report"),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut report = Report::sample();
        report.results[0].rows[0].verification = Some(Verdict {
            relative_error: f64::INFINITY,
            ..Verdict::default()
        });
        let text = report.to_json().to_string();
        let again = read(&text);
        assert_eq!(again.to_json().to_string(), text);
        let verdict = again.results[0].rows[0].verification.as_ref().unwrap();
        assert_eq!(verdict.relative_error, f64::INFINITY);

        let text = Report::sample_of_collectives().to_json().to_string();
        assert_eq!(read(&text).to_json().to_string(), text);
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        for (text, why) in [
            ("{}", "no timeline"),
            ("[1]", "invalid"),
            (r#"{"schema": "warpweave-bench/99"}"#, "warpweave-bench/99"),
            (r#"{"schema": "warpweave-bench/2"}"#, "missing field"),
        ] {
            let error = Document::from_json(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = Document::read(Path::new("nowhere.json")).unwrap_err();
        assert!(error.to_string().contains("nowhere.json"), "{error}");
    }
}
