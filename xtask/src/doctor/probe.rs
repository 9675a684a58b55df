//! Runs programs that report their version or state.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The tools of a broken driver hang; a healthy one answers in a second or two.
const LIMIT: Duration = Duration::from_secs(15);

/// What a program prints, if it succeeds in time.
pub fn answer<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Option<String> {
    answer_within(program, args, LIMIT)
}

fn answer_within<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
    limit: Duration,
) -> Option<String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut pipe = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.read_to_end(&mut bytes);
        // Nobody listens any more once the limit has passed.
        let _ = sender.send(read.map(|_| bytes));
    });
    let Ok(Ok(bytes)) = receiver.recv_timeout(limit) else {
        // A tool stuck in the driver may outlive SIGKILL, so it is not waited for.
        let _ = child.kill();
        return None;
    };
    child
        .wait()
        .ok()?
        .success()
        .then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The first line of what a program prints.
pub fn first_line<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Option<String> {
    let text = answer(program, args)?;
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(str::to_owned)
}

/// Where `PATH` has a program.
pub fn in_path(program: &str) -> Option<PathBuf> {
    warpweave_nvcc::Environment::current().program(program)
}

/// The first of `folders` that has the file.
pub fn in_folders(folders: &[PathBuf], file: &str) -> Option<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join(file))
        .find(|path| Path::exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_failures() {
        assert_eq!(
            first_line("sh", ["-c", "echo; echo ' one '; echo two"]),
            Some("one".into())
        );
        assert_eq!(answer("sh", ["-c", "echo out; exit 1"]), None);
        assert_eq!(answer("/nonexistent/program", [""; 0]), None);
    }

    #[test]
    fn a_tool_that_hangs_is_given_up() {
        let began = std::time::Instant::now();
        assert_eq!(
            answer_within("sleep", ["60"], Duration::from_millis(50)),
            None
        );
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
