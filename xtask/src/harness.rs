//! Test programs: which of their tests want a GPU, running them, counting their results.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wait_timeout::ChildExt;

use crate::cargo::{Executable, ended};
use crate::error::{Error, Result};

/// How test programs are run.
#[derive(Debug)]
pub struct Conditions {
    pub env: Vec<(String, String)>,
    /// For one program.
    pub limit: Duration,
    pub out: fn() -> Box<dyn Write>,
}

/// A test program of libtest.
///
/// A test wants a GPU when it is ignored and `cuda` or `gpu` is a part of its program's or its own name, as
/// in the program `cuda` or in `cuda::tests::round_trip`.
#[derive(Clone, Debug)]
pub struct Harness {
    pub name: String,
    program: PathBuf,
    target: String,
    folder: PathBuf,
}

impl Harness {
    pub fn new(package: &str, target: &str, program: PathBuf, folder: PathBuf) -> Self {
        Self {
            name: format!("{package} {target}"),
            program,
            target: target.into(),
            folder,
        }
    }

    /// The program that cargo made, run where cargo runs it.
    pub fn of(made: &Executable) -> Self {
        Self::new(
            &made.package_name(),
            &made.target.name,
            made.path.clone(),
            made.package.clone(),
        )
    }

    /// The tests that want a GPU.
    pub fn device_tests(&self) -> Result<Vec<String>> {
        let answer = self
            .command(&["--list", "--ignored", "--format", "terse"])
            .stderr(Stdio::inherit())
            .output()
            .map_err(Error::not_started(&self.program))?;
        ended(&format!("{} --list", self.program.display()), answer.status)?;
        let all = wants_gpu(&self.target);
        let text = String::from_utf8_lossy(&answer.stdout);
        let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests
            .filter(|test| all || wants_gpu(test))
            .map(str::to_owned)
            .collect())
    }

    /// Runs the program and passes its output on; it is killed at the limit.
    pub fn run(&self, args: &[&str], conditions: &Conditions) -> Result<Counts> {
        let mut command = self.command(args);
        command
            .envs(conditions.env.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped());
        let (limit, out) = (conditions.limit, conditions.out);
        let mut child = command.spawn().map_err(Error::not_started(&self.program))?;
        let reader = child
            .stdout
            .take()
            .map(|pipe| thread::spawn(move || count(pipe, out())));
        let status = child.wait_timeout(limit);
        let status = status.map_err(Error::not_started(&self.program))?;
        if status.is_none() {
            // It has not ended; how it ends is not the news.
            let _ = child.kill().and_then(|()| child.wait());
        }
        let mut counts = match reader {
            // A process that a test left behind may hold the pipe for ever: then the thread is abandoned.
            Some(reader) if finished(&reader) => reader.join().unwrap_or_default(),
            _ => Counts::default(),
        };
        match status {
            None => {
                println!("{}: killed, it did not end within {limit:?}", self.name);
                counts.failed += 1;
            }
            Some(status) => counts.account_for(status),
        }
        Ok(counts)
    }

    /// A command that starts it as cargo does.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        command
    }
}

fn finished<T>(reader: &thread::JoinHandle<T>) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    reader.is_finished()
}

fn wants_gpu(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| matches!(word, "cuda" | "gpu" | "gpus"))
}

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    /// Tests that failed, and programs that crashed or hung.
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; …`.
    pub fn of_result_line(line: &str) -> Option<Self> {
        let (_, numbers) = line
            .trim()
            .strip_prefix("test result: ")?
            .split_once(". ")?;
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

    /// Reads what [`Counts`] prints as a line.
    pub fn of_summary(line: &str) -> Option<Self> {
        let mut numbers =
            line.split(", ")
                .zip(["passed", "failed", "skipped"])
                .map(|(part, word)| {
                    let (number, found) = part.split_once(' ')?;
                    number.parse().ok().filter(|_| found == word)
                });
        let counts = Self {
            passed: numbers.next()??,
            failed: numbers.next()??,
            skipped: numbers.next()??,
        };
        (counts.to_string() == line).then_some(counts)
    }

    /// Counts a program that failed without a failing test: it crashed.
    pub fn account_for(&mut self, status: ExitStatus) {
        if !status.success() && self.failed == 0 {
            self.failed = 1;
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// Passes the output of test programs on and adds up their results.
pub fn count(from: impl Read, mut to: impl Write) -> Counts {
    let mut counts = Counts::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // Bytes, not text: a failing test may print anything.
    while from
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        if let Some(more) = Counts::of_result_line(&String::from_utf8_lossy(&line)) {
            counts += more;
        }
        line.clear();
    }
    counts
}

/// A bundle's test program.
pub fn bundled(root: &Path, program: &crate::bundle::Program) -> Harness {
    Harness::new(
        &program.package,
        &program.name,
        root.join(&program.path),
        root.to_path_buf(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(passed: usize, failed: usize, skipped: usize) -> Counts {
        Counts {
            passed,
            failed,
            skipped,
        }
    }

    #[test]
    fn results_add_up() {
        let output = "running 3 tests\ntest a ... ok\n\
            test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 5 filtered out; finished in \
            0.01s\n\
            \u{fffd}\n\
            test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        let mut passed_on = Vec::new();
        let counts = count(output.as_bytes(), &mut passed_on);
        assert_eq!(counts, of(12, 1, 4));
        assert_eq!(passed_on, output.as_bytes());
        assert_eq!(counts.to_string(), "12 passed, 1 failed, 4 skipped");
    }

    #[test]
    fn summaries_are_read_back_and_nothing_else_is() {
        let counts = of(12, 1, 4);
        assert_eq!(Counts::of_summary(&counts.to_string()), Some(counts));
        for line in [
            "",
            "12 passed, 1 failed",
            "12 passed, 1 failed, 4 skipped!",
            "a passed, 1 failed, 4 skipped",
        ] {
            assert_eq!(Counts::of_summary(line), None, "{line}");
        }
    }

    #[test]
    fn tests_for_gpus_are_known_by_a_word_of_their_name() {
        assert!(
            wants_gpu("cuda::memory::tests::round_trip")
                && wants_gpu("two_gpus")
                && wants_gpu("cuda_faults")
        );
        assert!(!wants_gpu("host::tests::barracuda") && !wants_gpu("plan::check"));
    }

    /// Reads the sources: an ignored test says there what it needs. A GPU test by another name would never
    /// run.
    #[test]
    fn every_test_for_gpus_is_called_so() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let mut folders = vec![crates.clone()];
        let mut found = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let file = path.strip_prefix(&crates).unwrap().display().to_string();
                    for test in ignored_for_gpus(&std::fs::read_to_string(&path).unwrap()) {
                        assert!(
                            wants_gpu(&file.replace('_', " ")) || wants_gpu(&test),
                            "{file}: {test}"
                        );
                        found += 1;
                    }
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

    fn shell(folder: &Path, script: &str) -> Harness {
        let program = folder.join("program");
        crate::setup::tests::script(&program, script);
        Harness::new("package", "unit", program, folder.into())
    }

    #[test]
    fn the_tests_for_gpus_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let list = shell(
            folder.path(),
            "echo 'cuda::a: test'; echo 'slow::b: test'; echo 'host::gpu_c: test'",
        );
        assert_eq!(list.device_tests().unwrap(), ["cuda::a", "host::gpu_c"]);
    }

    #[test]
    fn a_program_that_hangs_or_crashes_counts_as_failed() {
        let within = |limit| Conditions {
            env: Vec::new(),
            limit,
            out: || Box::new(std::io::sink()),
        };
        let soon = within(Duration::from_millis(300));
        let folder = tempfile::tempdir().unwrap();
        let hangs = shell(folder.path(), "exec sleep 60");
        let began = Instant::now();
        assert_eq!(hangs.run(&[], &soon).unwrap(), of(0, 1, 0));
        assert!(began.elapsed() < Duration::from_secs(20));
        let crashes = shell(folder.path(), "kill -SEGV $$");
        assert_eq!(
            crashes.run(&[], &within(Duration::from_secs(60))).unwrap(),
            of(0, 1, 0)
        );
    }
}
