//! Test programs: which of their tests want a GPU, running them, counting their results.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use cargo_metadata::{Artifact, TargetKind};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::process;

/// How test programs are run.
#[derive(Debug)]
pub struct Conditions {
    pub env: Vec<(&'static str, String)>,
    /// For one program.
    pub limit: Duration,
    pub out: Out,
}

/// Opens what the output of test programs is passed on to.
pub type Out = fn() -> Box<dyn Write>;

/// A test program of libtest.
///
/// A test wants a GPU when it is ignored and `cuda` or `gpu` is a part of its program's or its own name, as
/// in the program `cuda` or in `cuda::tests::round_trip`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TestProgram {
    /// The folder of the crate, as `gemm`.
    pub package: String,
    /// As `cuda`.
    pub target: String,
    pub path: PathBuf,
    /// Where it runs.
    pub folder: PathBuf,
}

impl TestProgram {
    /// The program that cargo made, run where cargo runs it.
    pub fn of(made: &Artifact) -> Self {
        let folder = made.manifest_path.parent();
        let target = match made.target.is_kind(TargetKind::Lib) {
            true => "unit",
            false => &made.target.name,
        };
        let package = folder.and_then(|path| path.file_name());
        Self {
            package: package.unwrap_or_default().into(),
            target: target.into(),
            path: made.executable.clone().unwrap_or_default().into(),
            folder: folder.map(PathBuf::from).unwrap_or_default(),
        }
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    /// The tests that want a GPU.
    pub fn device_tests(&self) -> Result<Vec<String>> {
        let mut command = self.command(&["--list", "--ignored", "--format", "terse"]);
        let (text, status) = process::output(&mut command)?;
        process::succeeded(&format!("{} --list", self.path.display()), status)?;
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        let wanted = tests.filter(|test| wants_gpu(&self.target) || wants_gpu(test));
        Ok(wanted.map(str::to_owned).collect())
    }

    /// Runs the program and passes its output on; it is killed at the limit.
    pub fn run(&self, args: &[&str], conditions: &Conditions) -> Result<Counts> {
        let (limit, out) = (conditions.limit, conditions.out);
        let mut command = self.command(args);
        command.envs(conditions.env.iter().cloned());
        let read = move |pipe| count(pipe, out());
        let (status, counts) = process::run_within(&mut command, limit, read)?;
        let counts = counts.unwrap_or_default();
        Ok(counts.of_program(&self.name(), status.ok_or(limit)))
    }

    /// A command that starts it as cargo does.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(args).stdin(Stdio::null());
        command.current_dir(&self.folder);
        command.env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

fn wants_gpu(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| matches!(word, "cuda" | "gpu" | "gpus"))
}

/// Tests by outcome.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub passed: usize,
    /// Tests that failed, and programs that crashed or hung.
    pub failed: usize,
    pub skipped: usize,
    /// Of failed tests, as far as they are known.
    pub names: Vec<String>,
}

impl Counts {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
    fn of_result_line(line: &str) -> Option<Self> {
        let result = line.trim().strip_prefix("test result: ")?;
        let (_, numbers) = result.split_once(". ")?;
        let mut counts = Self::default();
        for part in numbers.split("; ") {
            match part.split_once(' ') {
                Some((number, "passed")) => counts.passed = number.parse().ok()?,
                Some((number, "failed")) => counts.failed = number.parse().ok()?,
                Some((number, "ignored")) => counts.skipped = number.parse().ok()?,
                _ => {}
            }
        }
        Some(counts)
    }

    /// Of one thing that is no test.
    pub fn of_one(has_failed: bool) -> Self {
        Self {
            passed: usize::from(!has_failed),
            failed: usize::from(has_failed),
            ..Self::default()
        }
    }

    /// These are the tests of a program that ended so, or was killed at a limit. One that failed without a
    /// failing test crashed.
    pub fn of_program(
        mut self,
        program: &str,
        end: std::result::Result<ExitStatus, Duration>,
    ) -> Self {
        match end {
            Ok(status) if status.success() || self.failed > 0 => {}
            Ok(status) => {
                self.failed = 1;
                self.names.push(status.to_string());
            }
            Err(limit) => {
                let hung = format!("killed, it did not end within {limit:?}");
                eprintln!("{program}: {hung}");
                self.failed += 1;
                self.names.push(hung);
            }
        }
        for name in &mut self.names {
            *name = format!("{program}: {name}");
        }
        self
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.names.extend(other.names);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Passes the output of test programs on and adds up their results.
pub fn count(from: impl Read, mut to: impl Write) -> Counts {
    let mut counts = Counts::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // Bytes, not text: a failing test may print anything.
    while matches!(from.read_until(b'\n', &mut line), Ok(length) if length > 0) {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let text = String::from_utf8_lossy(&line);
        if let Some(more) = Counts::of_result_line(&text) {
            counts += more;
        }
        counts.names.extend(failed_test(&text).map(str::to_owned));
        line.clear();
    }
    counts
}

/// Reads a line such as `test host::barrier ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    let name = line.trim().strip_prefix("test ")?;
    name.strip_suffix(" ... FAILED")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn results_add_up() {
        let output = "running 3 tests\ntest a ... ok\ntest host::b ... FAILED\n\
            test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 5 filtered out; finished in \
            0.01s\n\
            \u{fffd}\n\
            test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        let mut passed_on = Vec::new();
        let counts = count(output.as_bytes(), &mut passed_on);
        assert_eq!(counts.to_string(), "12 passed, 1 failed, 4 skipped");
        assert_eq!(counts.names, ["host::b"]);
        assert_eq!(passed_on, output.as_bytes());
    }

    #[test]
    fn tests_for_gpus_are_known_by_a_word_of_their_name() {
        for name in ["cuda::memory::tests::round_trip", "two_gpus", "cuda_faults"] {
            assert!(wants_gpu(name), "{name}");
        }
        for name in ["host::tests::barracuda", "plan::check"] {
            assert!(!wants_gpu(name), "{name}");
        }
    }

    /// Reads the sources: an ignored test says there what it needs. A GPU test by another name would never
    /// run.
    #[test]
    fn every_test_for_gpus_is_called_so() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut found = 0;
        for entry in walkdir::WalkDir::new(&crates).into_iter().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path.strip_prefix(&crates).unwrap().display().to_string();
                for test in ignored_for_gpus(&std::fs::read_to_string(path).unwrap()) {
                    let is_known = wants_gpu(&file.replace('_', " ")) || wants_gpu(&test);
                    assert!(is_known, "{file}: {test}");
                    found += 1;
                }
            }
        }
        assert!(found > 50, "{found} tests for GPUs");
    }

    /// The ignored tests that need GPUs, with the outermost module that they are in.
    fn ignored_for_gpus(source: &str) -> Vec<String> {
        let (mut module, mut ignored, mut found) = (String::new(), false, Vec::new());
        for line in source.lines() {
            if line.starts_with("mod ") || line.starts_with('}') {
                module = line.trim_start_matches("mod ").into();
            }
            let line = line.trim_start();
            ignored |= line.starts_with("#[ignore") && line.contains("GPU");
            if ignored && let Some((_, name)) = line.split_once("fn ") {
                ignored = false;
                found.push(format!("{module} {}", name.replace('_', " ")));
            }
        }
        found
    }

    /// A script of the shell as a test program.
    pub(crate) fn shell(folder: &Path, target: &str, script: &str) -> TestProgram {
        let path = folder.join(target);
        process::tests::script(&path, script);
        TestProgram {
            package: "package".into(),
            target: target.into(),
            path,
            folder: folder.into(),
        }
    }

    #[test]
    fn the_tests_for_gpus_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo 'cuda::a: test'; echo 'slow::b: test'; echo 'host::gpu_c: test'";
        let list = shell(folder.path(), "unit", script);
        assert_eq!(list.device_tests().unwrap(), ["cuda::a", "host::gpu_c"]);
    }

    #[test]
    fn a_program_that_hangs_or_crashes_counts_as_failed() {
        let folder = tempfile::tempdir().unwrap();
        let hangs = ("exec sleep 60", 300, "it did not end within 300ms");
        let crashes = ("kill -SEGV $$", 60_000, "signal: 11 (SIGSEGV)");
        for (script, limit, reason) in [hangs, crashes] {
            let conditions = Conditions {
                env: Vec::new(),
                limit: Duration::from_millis(limit),
                out: || Box::new(std::io::sink()),
            };
            let began = std::time::Instant::now();
            let program = shell(folder.path(), "unit", script);
            let counts = program.run(&[], &conditions).unwrap();
            assert_eq!((counts.passed, counts.failed), (0, 1), "{script}");
            assert_eq!(counts.names.len(), 1, "{counts:?}");
            assert!(counts.names[0].ends_with(reason), "{counts:?}");
            assert!(began.elapsed() < Duration::from_secs(20));
        }
    }
}
