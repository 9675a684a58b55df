//! Baselines: saved by real jobs, compared by the binary, each refusal with its status.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::job::{self, Said, has};

/// A folder of baselines.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn file(&self, name: &str, suite: &str) -> PathBuf {
        self.0.path().join(name).join(format!("{suite}.json"))
    }

    /// Saves a run of two ranks in which calls are slowed down: so much that what else runs on the machine is
    /// no matter.
    fn save(&self, name: &str, suite: &str, slow: &str) {
        let bench = "bench --device host --iterations 24";
        let save = format!("--save-baseline {name} --baselines {}", self.path());
        let outcome = job::run_line(2, &format!("{bench} {save} --inject {slow} {suite}"));
        outcome.succeeded();
        has(
            &outcome.errors(0),
            &[&format!("saved as baseline {name}: ")],
        );
    }

    /// Copies a baseline, with a change.
    fn copy(&self, (from, to): (&str, &str), suite: &str, change: impl Fn(&str) -> String) {
        let text = std::fs::read_to_string(self.file(from, suite)).unwrap();
        self.write(to, suite, &change(&text));
    }

    fn write(&self, name: &str, suite: &str, text: &str) {
        let place = self.file(name, suite);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, text).unwrap();
    }

    fn compare(&self, words: &str) -> (Option<i32>, String, String) {
        let line = format!("compare --baselines {} {words}", self.path());
        let mut command = job::warpweave();
        let Said { code, out, err } =
            job::said(command.args(job::args(&line)).env("COLUMNS", "200"));
        (code, out, err)
    }
}

const GEMM: &str = "--suite gemm --impl cublasLt --shape 16x16x16";
const COLLECTIVES: &str = "--suite collectives --sizes 1K --op all-reduce --impl one-shot";

#[test]
fn a_slowdown_is_caught_and_noise_is_not() {
    // A machine that is busy enough during one run of several makes noise that is none of them.
    let mut attempts = 1..=3;
    let folder = loop {
        let attempt = attempts.next();
        let folder = measured();
        match verdicts(&folder) {
            Ok(()) => break folder,
            Err(why) => assert!(attempt < Some(3), "{why}"),
        }
    };
    messages(&folder);
}

/// Calls take 10 to 30 ms, in another order where the other rank is the slow one; then at least 50. What a
/// busy machine adds, a few ms, lies within that spread.
fn measured() -> Folder {
    let folder = Folder::new();
    for suite in [GEMM, COLLECTIVES] {
        folder.save("before", suite, "slow10000-30000:1");
        folder.save("noise", suite, "slow10000-30000:0");
        folder.save("after", suite, "slow50000-90000:1");
    }
    folder
}

/// Whether comparisons say what they must.
fn verdicts(folder: &Folder) -> Result<(), String> {
    let (status, table, errors) = folder.compare("before noise --threshold 5");
    if status != Some(0) || !table.contains("0 slower, 0 faster") {
        return Err(format!("{table}{errors}"));
    }
    let (status, table, errors) = folder.compare("before after --threshold 25");
    let is_slower = |words: &[&str]| {
        let mut lines = table.lines();
        lines.any(|line| line.contains("SLOWER") && words.iter().all(|word| line.contains(word)))
    };
    let gemm = is_slower(&["gemm", "16x16x16 bf16, 2 ranks", "cublasLt", "call"]);
    let problem = "all-reduce 1K bf16, 2 ranks";
    let collectives = is_slower(&["collectives", problem, "one-shot", "graph"]);
    if status != Some(1) || !gemm || !collectives || !errors.is_empty() {
        return Err(format!("{table}{errors}"));
    }
    // The other way round nothing is slower.
    let (status, table, _) = folder.compare("after before");
    if status != Some(0) || !table.contains("faster") || table.contains("SLOWER ") {
        return Err(table);
    }
    Ok(())
}

/// What the binary says where there is nothing to compare, or not all of it.
fn messages(folder: &Folder) {
    let (status, table, errors) = folder.compare("before mian");
    assert_eq!((status, table.as_str()), (Some(2), ""));
    assert!(
        errors.contains("no baseline `mian`") && errors.contains("after, before, noise"),
        "{errors}"
    );

    let ranks = |text: &str| text.replace(r#""ranks": 2"#, r#""ranks": 4"#);
    folder.copy(("before", "elsewhere"), "gemm", ranks);
    let (status, table, errors) = folder.compare("before elsewhere");
    assert_eq!((status, table.as_str()), (Some(3), ""));
    assert!(
        errors.contains("different machines")
            && errors.contains("ranks 2 in before, 4 in elsewhere"),
        "{errors}"
    );

    folder.copy(("before", "renamed"), "gemm", |text| {
        text.replace("cublasLt", "other")
    });
    let (status, _, errors) = folder.compare("before renamed");
    assert_eq!(status, Some(2));
    assert!(errors.contains("no time in common"), "{errors}");

    folder.copy(("before", "half"), "gemm", str::to_owned);
    let (status, table, _) = folder.compare("before half");
    assert_eq!(status, Some(0), "{table}");
    assert!(
        table.contains("suite collectives is in before alone"),
        "{table}"
    );

    folder.copy(("before", "older"), "gemm", |text| {
        text.replace("\"samples\": {", "\"was\": {")
    });
    let (status, _, errors) = folder.compare("before older");
    assert_eq!(status, Some(2));
    assert!(
        errors.contains("no samples") && errors.contains("older"),
        "{errors}"
    );

    folder.copy(("before", "foreign"), "gemm", |_| "[1, 2]".into());
    let (status, _, errors) = folder.compare("before foreign");
    assert_eq!(status, Some(2));
    assert!(
        errors.contains("gemm.json") && errors.contains("no report"),
        "{errors}"
    );

    folder.copy(("before", "wrong"), "gemm", |text| {
        text.replace(r#""status": "ok""#, r#""status": "wrong""#)
    });
    let (status, table, errors) = folder.compare("before wrong");
    assert_eq!((status, errors.as_str()), (Some(1), ""), "{table}");
    let line = "WRONG in wrong: gemm: 16x16x16 bf16, 2 ranks, cublasLt: ";
    has(&table, &[line, "1 wrong"]);

    // A path does instead of a name.
    let file = folder.file("before", "gemm");
    let (status, table, errors) = folder.compare(&format!("{} before", file.display()));
    assert_eq!(status, Some(0), "{table}{errors}");
    assert!(table.contains("1.000"), "{table}");
}

#[test]
fn a_run_with_a_wrong_row_is_not_saved() {
    let folder = Folder::new();
    let save = format!("--save-baseline wrong --baselines {}", folder.path());
    let bench = "bench --device host --iterations 3 --inject corrupt:1";
    let outcome = job::run_line(2, &format!("{bench} {save} {GEMM}"));
    let errors = outcome.ended(0, Some(1));
    has(&errors, &["wrong is not saved: a row is wrong"]);
    assert!(!Path::new(folder.path()).join("wrong").exists());
}

#[test]
fn a_run_without_a_row_that_ran_is_not_saved() {
    let folder = Folder::new();
    folder.write("kept", "collectives", "the baseline of before");
    let bench = "bench --device host --suite collectives --sizes 1K --op all-reduce --impl nccl";
    let Said { code, err, .. } = job::say(bench);
    assert_eq!(code, Some(0), "{err}");
    has(&err, &["nothing was measured"]);
    let save = format!("--save-baseline kept --baselines {}", folder.path());
    let Said { code, out, err } = job::say(&format!("{bench} {save}"));
    assert_eq!(code, Some(1), "{err}");
    has(&out, &["nccl was not run"]);
    has(&err, &["baseline kept is not saved: no row ran"]);
    let text = std::fs::read_to_string(folder.file("kept", "collectives")).unwrap();
    assert_eq!(text, "the baseline of before");
}

#[test]
fn options_that_cannot_be_are_refused_before_the_run() {
    let folder = Folder::new();
    let Said { code, err, .. } = job::say("bench --list --save-baseline ../up");
    assert_eq!(code, Some(2));
    has(&err, &["`../up` is no name of a baseline"]);
    for threshold in ["-5", "much", "1e9"] {
        let (status, _, errors) = folder.compare(&format!("a b --threshold={threshold}"));
        assert_eq!(status, Some(2), "{threshold}");
        assert!(errors.contains("not a percentage"), "{errors}");
    }
    let (status, _, errors) = folder.compare("a b");
    assert_eq!(status, Some(2));
    assert!(errors.contains("there is none yet"), "{errors}");
}
