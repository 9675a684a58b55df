//! One rank: a child process in a process group of its own that cannot outlive the launcher.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::job::Identity;
use super::log::{Copied, FirstError, LogFolder, tee};
use super::{Error, Launch, Result, remote};
use crate::error::End;

pub(super) struct Rank {
    pub index: usize,
    child: Child,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
    /// Disconnected when everything that the rank wrote has been passed on.
    passed_on: Receiver<()>,
    log: PathBuf,
    log_error: FirstError,
    /// Of standard output.
    output_error: FirstError,
    /// Open for as long as a rank on another host may run.
    _lifeline: Option<ChildStdin>,
}

impl Rank {
    pub fn start(
        launch: &Launch,
        index: usize,
        identity: &Identity,
        logs: &LogFolder,
    ) -> Result<Self> {
        let log = || logs.open(index);
        let shown = index == 0;
        let each = launch.ranks / launch.job.hosts.len().max(1);
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.args)
            .env("WARPWEAVE_RANK", index.to_string())
            .env("WARPWEAVE_WORLD_SIZE", launch.ranks.to_string())
            .env("WARPWEAVE_LOCAL_RANK", (index % each).to_string())
            .env("WARPWEAVE_STORE", &identity.store)
            .stdin(Stdio::null());
        let mut command = match launch.job.hosts.get(index / each) {
            Some(host) => remote::command(host, &command)?,
            None => {
                command.env("WARPWEAVE_JOB_TOKEN", &identity.token);
                command
            }
        };
        command
            .stdout(if shown { Stdio::piped() } else { log()?.into() })
            .stderr(match shown {
                // A progress bar needs the terminal itself: through a pipe it would not be drawn.
                true if io::stderr().is_terminal() => Stdio::inherit(),
                true => Stdio::piped(),
                false => log()?.into(),
            })
            .process_group(0);
        die_with_parent(&mut command);
        let child = command.spawn();
        let mut child = child.map_err(Error::not_started(&launch.program))?;
        let lifeline = child.stdin.take();
        if let Some(mut stdin) = lifeline.as_ref() {
            // A connection that is gone already is seen by its end.
            let _ = writeln!(stdin, "{}", identity.token);
        }
        let (open, passed_on) = channel::<()>();
        let (log_error, output_error) = (FirstError::default(), FirstError::default());
        if let Some(pipe) = child.stdout.take() {
            let to = Copied::new(io::stdout(), &output_error);
            pass_on(pipe, Copied::new(log()?, &log_error), to, open.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            // An error here could not be reported: that would be written to standard error, too.
            let to = Copied::new(io::stderr(), &FirstError::default());
            pass_on(pipe, Copied::new(log()?, &log_error), to, open);
        }
        Ok(Self {
            index,
            child,
            end: None,
            passed_on,
            log: logs.rank(index),
            log_error,
            output_error,
            _lifeline: lifeline,
        })
    }

    /// Calls `ended` in a thread once the process has ended. It stays a zombie until [`Rank::reap`], so that
    /// no other process gets its number and a signal for it.
    pub fn on_end(&self, ended: impl FnOnce() + Send + 'static) {
        let pid = Pid::from_child(&self.child);
        thread::spawn(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let wait = || rustix::process::waitid(WaitId::Pid(pid), options);
            // An error other than an interrupted call means that there is nothing left to wait for.
            let _ = rustix::io::retry_on_intr(wait);
            ended();
        });
    }

    /// Sends a signal to the rank and to what it started. After [`Rank::reap`] this does nothing.
    pub fn signal(&self, signal: Signal) {
        if self.end.is_none() {
            // No such group: it has just ended, and the notice follows.
            let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), signal);
        }
    }

    /// Takes the status of a rank that has ended, and ends the processes that outlive it.
    pub fn reap(&mut self) -> End {
        self.signal(Signal::KILL);
        let end = self.child.wait().map_or(End::Code(-1), End::from);
        self.end = Some(end);
        end
    }

    /// Waits until what the rank wrote has been passed on: at once after its end, unless a process that left
    /// the rank's group keeps the pipe open. An error means that our own output lacks some of it.
    pub fn drain(&self, limit: Duration) -> Result<()> {
        let _ = self.passed_on.recv_timeout(limit);
        let log = self.log.clone();
        if let Some(error) = self.log_error.get() {
            eprintln!("warning: {} is incomplete: {error}", log.display());
        }
        match self.output_error.get() {
            Some(error) => Err(Error::Output {
                cause: error.to_string(),
                log,
            }),
            None => Ok(()),
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Not waited for: a process that the kernel holds would block us.
        self.signal(Signal::KILL);
        let _ = self.child.try_wait();
    }
}

/// Copies a pipe of a rank to our own output and to its log, and keeps `open` until its end.
fn pass_on(
    pipe: impl Read + Send + 'static,
    log: Copied<File>,
    to: Copied<impl Write + Send + 'static>,
    open: Sender<()>,
) {
    thread::spawn(move || {
        tee(pipe, log, to);
        drop(open);
    });
}

fn die_with_parent(command: &mut Command) {
    let launcher = rustix::process::getpid();
    let arrange = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the request was made: then nobody would send the signal.
        if rustix::process::getppid() != Some(launcher) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. `arrange` makes two system calls
    // (prctl and getppid) and builds an error from a number; it allocates nothing, takes no lock and owns
    // only a number.
    unsafe { command.pre_exec(arrange) };
}
