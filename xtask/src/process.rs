//! Runs programs.

use std::ffi::OsStr;
use std::io::Read;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use wait_timeout::ChildExt;

use crate::error::{Error, Result};

/// The tools of a broken driver hang; a healthy one answers in a second or two.
const LIMIT: Duration = Duration::from_secs(15);
const MINUTE: Duration = Duration::from_secs(60);
/// For the last output of a process that has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// How a command ended.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    let status = command.status();
    status.map_err(Error::not_started(command.get_program()))
}

/// How a command ended, unless it was killed at the limit. Calls `slow` if it runs for longer than a minute.
pub fn status_within(
    command: &mut Command,
    limit: Duration,
    slow: impl FnOnce(),
) -> Result<Option<ExitStatus>> {
    let child = command.spawn();
    let mut child = child.map_err(Error::not_started(command.get_program()))?;
    let first = limit.min(MINUTE);
    if let Some(status) = child.wait_timeout(first)? {
        return Ok(Some(status));
    }
    if limit > first {
        slow();
    }
    end_within(&mut child, limit - first)
}

/// How a process ended, unless it was killed at the limit.
fn end_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let status = child.wait_timeout(limit)?;
    if status.is_none() {
        // One that is stuck in the driver may outlive SIGKILL, so it is not waited for.
        let _ = child.kill();
    }
    Ok(status)
}

/// Runs a command to its end, which must be good.
pub fn run(command: &mut Command, name: &str) -> Result<()> {
    succeeded(name, status(command)?)
}

/// Whether a command runs and ends well. Its output is lost.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// What a command prints, with how it ended. It writes to our standard error.
pub fn output(command: &mut Command) -> Result<(String, ExitStatus)> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(Error::not_started(command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((text, output.status))
}

/// The error of a command that failed.
pub fn succeeded(name: &str, status: ExitStatus) -> Result<()> {
    match status.success() {
        true => Ok(()),
        false => Err(Error::Failed(format!("`{name}` failed with {status}"))),
    }
}

/// Runs a command whose output `read` takes. At the limit it is killed: then there is no status. Output that
/// a process that outlives it keeps open is not waited for.
pub fn run_within<T: Send + 'static>(
    command: &mut Command,
    limit: Duration,
    read: impl FnOnce(ChildStdout) -> T + Send + 'static,
) -> Result<(Option<ExitStatus>, Option<T>)> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.spawn();
    let mut child = child.map_err(Error::not_started(command.get_program()))?;
    let (sender, output) = channel();
    if let Some(pipe) = child.stdout.take() {
        // Nobody listens any more once the limit has passed.
        thread::spawn(move || drop(sender.send(read(pipe))));
    }
    let status = end_within(&mut child, limit)?;
    Ok((status, output.recv_timeout(LAST_OUTPUT).ok()))
}

/// What a program prints, if it succeeds in time.
pub fn answer(program: impl AsRef<OsStr>, args: &[&str]) -> Option<String> {
    answer_within(Command::new(program).args(args), LIMIT)
}

fn answer_within(command: &mut Command, limit: Duration) -> Option<String> {
    let all = |mut pipe: ChildStdout| {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    };
    let (status, output) = run_within(command.stderr(Stdio::null()), limit, all).ok()?;
    let text = String::from_utf8_lossy(&output?.ok()?).into_owned();
    status?.success().then_some(text)
}

/// The first line of what a program prints.
pub fn first_line(program: impl AsRef<OsStr>, args: &[&str]) -> Option<String> {
    let text = answer(program, args)?;
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;

    /// An executable script. Another process writes it: were it open for writing here, a child that another
    /// test forks meanwhile would hold it open too, and the system refuses to run such a file.
    pub(crate) fn script(path: &Path, body: &str) {
        let mut install = Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        write!(install.stdin.take().unwrap(), "#!/bin/sh\n{body}\n").unwrap();
        assert!(install.wait().unwrap().success());
    }

    #[test]
    fn answers_and_failures() {
        let line = first_line("sh", &["-c", "echo; echo ' one '; echo two"]);
        assert_eq!(line, Some("one".into()));
        assert_eq!(answer("sh", &["-c", "echo out; exit 1"]), None);
        assert_eq!(answer("/nonexistent/program", &[]), None);
        let began = std::time::Instant::now();
        let hangs = answer_within(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert_eq!(hangs, None);
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
