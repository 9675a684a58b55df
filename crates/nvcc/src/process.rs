//! Running programs with a deadline.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The result of a program.
pub(crate) struct Finished {
    pub status: ExitStatus,
    /// Standard output and standard error in the order they were written.
    pub output: String,
}

/// Runs `command` with its output in `log`, and kills it after `limit`.
///
/// The output goes to a file: a pipe would need a thread to drain it, or fill up and block a compiler that
/// prints much.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Finished> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = File::create(log).map_err(Error::io("write", log))?;
    let err = out.try_clone().map_err(Error::io("write", log))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(Error::io("run", &program))?;
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(Error::io("wait for", &program))? {
            break status;
        }
        if Instant::now() >= end {
            // Its error does not matter: the user must hear of the deadline.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Deadline { program, limit });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let bytes = fs::read(log).map_err(Error::io("read", log))?;
    Ok(Finished {
        status,
        output: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let done = run(
            &mut command,
            &folder.path().join("log"),
            Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!(done.status.code(), Some(3));
        assert_eq!(done.output, "out\nerr\n");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let mut command = Command::new("sleep");
        command.arg("60");
        let error = run(
            &mut command,
            &folder.path().join("log"),
            Duration::from_millis(100),
        );
        assert!(matches!(error, Err(Error::Deadline { .. })));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
