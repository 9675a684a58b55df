//! `xtask` as people and programs call it.

mod launch;
mod workspace;

use std::fs::File;
use std::process::{Command, Output};

/// A command of the program under test.
fn xtask(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(args);
    command
}

/// How a command ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl Ended {
    fn of(mut command: Command) -> Self {
        command.output().unwrap().into()
    }

    /// It succeeded and printed just this.
    fn printed(&self, out: &str) {
        assert_eq!((self.code, &*self.out), (Some(0), out), "{}", self.err);
    }

    /// It ended with this status, and all of these are in its errors.
    fn failed(&self, code: i32, messages: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        for message in messages {
            assert!(
                self.err.contains(message),
                "no `{message}` in: {}",
                self.err
            );
        }
    }

    fn succeeded(&self) {
        self.failed(0, &[]);
    }
}

#[test]
fn doctor_reports_a_machine_that_runs_these_tests_and_how_to_get_what_is_missing() {
    let mut command = xtask(&["doctor"]);
    command.env("WARPWEAVE_CUTLASS", "/nonexistent");
    command.env("WARPWEAVE_NCCL", "/nonexistent/libnccl.so.2");
    let ended = Ended::of(command);
    ended.succeeded();
    let lines: Vec<_> = ended.out.lines().collect();
    for name in "memory rustc nvcc CUTLASS libcuda NCCL cuBLASLt multicast".split(' ') {
        assert!(
            lines.iter().any(|line| line.contains(name)),
            "no {name} in: {}",
            ended.out
        );
    }
    for (needed_for, name) in [("device code", "CUTLASS"), ("GPUs", "NCCL")] {
        let begin = format!("MISSING  {needed_for:12}  {name} ");
        let is_missing = |line: &&str| line.starts_with(&begin);
        assert!(lines.iter().any(is_missing), "{name}: {}", ended.out);
    }
    for pair in lines
        .windows(2)
        .filter(|pair| pair[0].starts_with("MISSING"))
    {
        assert!(pair[1].trim_start().starts_with("-> "), "{}", ended.out);
    }
    for answer in [
        "on the processors:  yes",
        "can be built:    no",
        "on GPUs:            no",
    ] {
        assert!(ended.out.contains(answer), "{}", ended.out);
    }
    // How to measure is of no use to a report.
    Ended::of(xtask(&["doctor", "--ranks", "2"])).failed(2, &["--measure"]);
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
    for name in [["ci", "--list"].as_slice(), &["doctor"]] {
        let mut command = xtask(name);
        command.stdout(File::create("/dev/full").unwrap());
        Ended::of(command).failed(1, &["error: cannot write to standard output: No space"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = xtask(name);
        command.stdout(writer);
        let ended = Ended::of(command);
        ended.succeeded();
        assert_eq!(ended.err, "");
    }
}
