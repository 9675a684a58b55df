//! Runs that were kept under a name, and what has changed from one to another.
//!
//! A *baseline* is a folder of JSON reports, one for each suite: `DIR/NAME/SUITE.json`. A run is kept whole
//! or not at all: a report with a wrong row is none to compare with. Keeping a suite again under the same
//! name replaces it.
//!
//! [`compare`] holds two against each other, time by time, by [`ratio()`]: a time is slower if both
//! the ratio of the medians and the lower bound of an interval of that ratio lie above a threshold. Times of
//! different machines are not compared.

mod comparison;
mod ratio;
mod saved;
mod table;

use std::path::{Path, PathBuf};

pub use comparison::{Comparison, Line, Verdict, compare, default_threshold};
pub use ratio::{CONFIDENCE, FEWEST_SAMPLES, Ratio, ratio};
pub use saved::{Saved, Time};

use crate::error::{ReportError, Result};
use crate::file;

/// A folder of baselines.
#[derive(Clone, Debug)]
pub struct Baselines {
    root: PathBuf,
}

impl Baselines {
    /// The baselines in `root`, a folder that need not be there yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The names of the baselines, in order.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten();
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut names: Vec<_> = folders
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| !reports(&self.root.join(name)).is_empty())
            .collect();
        names.sort();
        names
    }

    /// The file of the report of `suite` under `name`.
    ///
    /// # Errors
    /// [`ReportError::Usage`]: it is no name.
    pub fn place(&self, name: &str, suite: &str) -> Result<PathBuf> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain) {
            return Ok(self.root.join(name).join(format!("{suite}.json")));
        }
        Err(ReportError::Usage(format!(
            "`{name}` is no name of a baseline: letters, digits, `.`, `_` and `-`, a letter or a digit first"
        )))
    }

    /// Keeps the report of `suite` under `name` and returns where.
    ///
    /// # Errors
    /// As of [`Baselines::place`]; [`ReportError::File`].
    pub fn save(&self, name: &str, suite: &str, report: &[u8]) -> Result<PathBuf> {
        let place = self.place(name, suite)?;
        std::fs::create_dir_all(self.root.join(name)).map_err(file::at(&place))?;
        file::write(&place, report)?;
        Ok(place)
    }

    /// The reports of a baseline: those under a name, or, of what has a `/` or ends in `.json`, that file or
    /// the files of that folder. Such a path starts in the current directory, or else in the folder of
    /// baselines.
    ///
    /// # Errors
    /// [`ReportError::NoBaseline`]; [`ReportError::NoReports`]; [`ReportError::File`];
    /// [`ReportError::Baseline`].
    pub fn read(&self, what: &str) -> Result<Vec<Saved>> {
        let is_path = what.contains('/') || what.ends_with(".json");
        let mut places = vec![self.root.join(what)];
        // An absolute path is one place.
        if is_path && Path::new(what) != places[0] {
            places.insert(0, what.into());
        }
        let mut found = places.iter().map(|path| match path.is_file() {
            true => vec![path.clone()],
            false => reports(path),
        });
        let Some(files) = found.find(|files| !files.is_empty()) else {
            return Err(match is_path {
                true => ReportError::NoReports { places },
                false => ReportError::NoBaseline {
                    name: what.into(),
                    root: self.root.clone(),
                    known: self.names(),
                },
            });
        };
        let runs = files.iter().map(|file| Saved::read(file));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        Saved::check_distinct(&files, &runs)?;
        Ok(runs)
    }
}

/// The JSON files of a folder, in order; none of what is no folder.
fn reports(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Report;

    #[test]
    fn what_was_saved_is_read_again_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let baselines = Baselines::new(folder.path().join("deep/down"));
        assert!(baselines.names().is_empty());
        let json = Report::sample().to_json().to_string().into_bytes();
        for name in ["b", "a.1"] {
            let place = baselines.save(name, "fused-matmul", &json).unwrap();
            assert_eq!(std::fs::read(place).unwrap(), json);
        }
        baselines.save("b", "fused-matmul", &json).unwrap();
        assert_eq!(baselines.names(), ["a.1", "b"]);
        let saved = baselines.read("b").unwrap();
        assert_eq!(saved.len(), 1, "no unfinished file is left");
        assert_eq!(saved[0].suite, "fused-matmul");
        let file = baselines.place("b", "fused-matmul").unwrap();
        assert_eq!(baselines.read(file.to_str().unwrap()).unwrap().len(), 1);
    }

    #[test]
    fn a_time_that_two_files_have_is_refused_by_both_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut report = Report::sample();
        for name in ["a", "b"] {
            let path = folder.path().join(name).with_extension("json");
            std::fs::write(path, report.to_json().to_string()).unwrap();
        }
        let baselines = Baselines::new("none");
        let path = folder.path().to_str().unwrap();
        let error = baselines.read(path).unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let told = error.to_string();
        assert!(
            told.contains("a.json has fused-matmul: all-gather-matmul"),
            "{told}"
        );
        assert!(told.contains("b.json: "), "{told}");
        report.results[0].dtype = "bf16".into();
        std::fs::write(folder.path().join("b.json"), report.to_json().to_string()).unwrap();
        assert_eq!(baselines.read(path).unwrap().len(), 2);
    }

    #[test]
    fn a_missing_baseline_names_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let baselines = Baselines::new(folder.path());
        let message = |name: &str| baselines.read(name).unwrap_err().to_string();
        assert!(message("main").contains("there is none yet"));
        baselines.save("before", "gemm", b"{}").unwrap();
        baselines.save("after", "gemm", b"{}").unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let told = message("main");
        assert!(
            told.contains("`main`") && told.contains("after, before") && !told.contains("empty"),
            "{told}"
        );
        assert!(told.contains("--save-baseline main"), "{told}");
        let error = baselines.read("after").unwrap_err();
        assert!(matches!(error, ReportError::Baseline { .. }), "{error}");
    }

    #[test]
    fn a_path_is_found_in_the_folder_of_baselines_too() {
        let folder = tempfile::tempdir().unwrap();
        let baselines = Baselines::new(folder.path());
        let json = Report::sample().to_json().to_string();
        baselines
            .save("before", "fused-matmul", json.as_bytes())
            .unwrap();
        for path in ["before/fused-matmul.json", "before/"] {
            assert_eq!(baselines.read(path).unwrap().len(), 1, "{path}");
        }
        let error = baselines.read("before/gemm.json").unwrap_err();
        assert_eq!(error.exit_status(), 2);
        let root = folder.path().display();
        let places = format!("no report at before/gemm.json or {root}/before/gemm.json");
        assert!(error.to_string().starts_with(&places), "{error}");
        let error = baselines.read("/none/gemm.json").unwrap_err().to_string();
        assert!(
            error.starts_with("no report at /none/gemm.json: "),
            "{error}"
        );
    }

    #[test]
    fn names_stay_within_the_folder() {
        let baselines = Baselines::new("somewhere");
        for name in ["", "../up", "a/b", ".hidden", "-x", "a b"] {
            assert!(baselines.place(name, "gemm").is_err(), "{name}");
        }
        let place = baselines.place("v1.2_rc-3", "gemm").unwrap();
        assert_eq!(place, Path::new("somewhere/v1.2_rc-3/gemm.json"));
    }
}
