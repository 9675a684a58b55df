//! What earlier runs wrote: reports of every suite and of every layout there has been, and timelines.

use std::path::Path;

use serde::Deserialize;

use super::{Report, SCHEMA, View};
use crate::collectives::report as collectives;
use crate::error::{BenchError, Result};
use crate::trace::Trace;

/// What a file holds.
#[derive(Clone, Debug)]
pub enum Document {
    /// A suite of plans.
    Plans(Report),
    /// The suite of collectives.
    Collectives(collectives::Report),
    /// When operations ran.
    Timelines(Trace),
}

/// Layouts of suites of plans; what the first did not have is absent.
const OF_PLANS: [&str; 2] = ["warpweave-bench/1", SCHEMA];

/// What tells the kinds of files apart.
#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
    #[serde(rename = "traceEvents")]
    events: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Reads a file.
    ///
    /// # Errors
    /// [`BenchError::File`]; [`BenchError::Usage`] for what `bench --json`, `timeline` or `plan trace` did not write.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| BenchError::File {
            path: path.to_owned(),
            source,
        })?;
        Self::from_json(&text)
            .map_err(|why| BenchError::Usage(format!("{}: {why}", path.display())))
    }

    /// A drawing in SVG, of what has one.
    pub fn plot(&self) -> Option<String> {
        match self {
            Document::Collectives(report) => report.plot(),
            Document::Plans(_) | Document::Timelines(_) => None,
        }
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn from_json(text: &str) -> Result<Self, String> {
        fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, String> {
            serde_json::from_str(text).map_err(|error| error.to_string())
        }
        let head: Head = parse(text)?;
        match (head.schema.as_deref(), head.events) {
            (Some(schema), _) if OF_PLANS.contains(&schema) => parse(text).map(Document::Plans),
            (Some(collectives::SCHEMA), _) => parse(text).map(Document::Collectives),
            (None, Some(_)) => parse(text).map(Document::Timelines),
            (Some(other), _) => Err(format!(
                "`{other}` is a layout that this program does not read; it reads {}, {}",
                OF_PLANS.join(", "),
                collectives::SCHEMA
            )),
            (None, None) => Err("neither a report of `bench --json` nor a timeline".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Kind, Status};
    use crate::verification::Verdict;

    #[test]
    fn what_is_written_is_read_again() {
        let mut report = Report::sample();
        report.results[0].rows[0].verification = Some(Verdict {
            relative_error: f64::INFINITY,
            ..Verdict::default()
        });
        let text = serde_json::to_string(&report).unwrap();
        let Document::Plans(read) = Document::from_json(&text).unwrap() else {
            panic!("not of plans")
        };
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        let verdict = read.results[0].rows[0].verification.as_ref().unwrap();
        assert_eq!(verdict.relative_error, f64::INFINITY);

        let text = serde_json::to_string(&collectives::Report::sample()).unwrap();
        let Document::Collectives(read) = Document::from_json(&text).unwrap() else {
            panic!("not of collectives")
        };
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn the_first_layout_lacks_what_came_later() {
        let text = include_str!("first_layout.json");
        let Document::Plans(report) = Document::from_json(text).unwrap() else {
            panic!("not of plans")
        };
        assert_eq!(
            (report.schema.as_ref(), report.results.len()),
            (OF_PLANS[0], 3)
        );
        let result = &report.results[0];
        assert_eq!((result.operation.as_ref(), result.groups.len()), (None, 0));
        assert_eq!(result.rows[0].single_ms.unwrap().median, 0.029232);
        let of = |status| result.rows.iter().filter(move |row| row.status == status);
        assert_eq!((of(Status::Ok).count(), of(Status::NotRun).count()), (5, 2));
        assert!(result.rows.iter().all(|row| row.kind == Kind::Ours));
    }

    #[test]
    fn other_files_are_refused_by_what_they_are() {
        for (text, why) in [
            ("{}", "neither"),
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
