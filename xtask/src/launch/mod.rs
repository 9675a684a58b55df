//! Starts the ranks of a job on this machine or by ssh on others, watches them, and ends all of them when one
//! fails.
//!
//! The contract with the program that is launched:
//!
//! - It reads its rank from `WARPWEAVE_RANK`, `WARPWEAVE_WORLD_SIZE` and `WARPWEAVE_LOCAL_RANK`, the store's
//!   address from `WARPWEAVE_STORE` (`host:port`; rank 0 listens there) and the job's secret from
//!   `WARPWEAVE_JOB_TOKEN`. It inherits all other variables. Nothing here clears a guard of NVLink multicast
//!   (`NCCL_NVLS_ENABLE`, `TORCH_SYMM_MEM_DISABLE_MULTICAST`, `NVSHMEM_DISABLE_NVLS`).
//! - A rank that did its work exits with 0. A rank that gives up because a peer is gone exits with
//!   [`PEER_LOST`], so that the launcher names the peer, not the rank that noticed.
//! - A rank dies with the launcher, whatever ends the launcher. What a rank started dies with the rank.
//! - One failing rank ends the job. The others have [`Patience::grace`] to end with an error of their own,
//!   then get SIGTERM, and after [`Patience::term`] SIGKILL.

mod job;
mod log;
mod rank;
mod remote;
mod supervisor;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{End, Error, Result};
use job::Identity;
use log::LogFolder;
use rank::Rank;
use supervisor::{Supervisor, Verdict};

/// The exit status of a rank that ended because a peer did (sysexits' EX_PROTOCOL, otherwise unused).
pub const PEER_LOST: i32 = 76;

/// As many ranks as `warpweave-comm` takes.
const LARGEST_WORLD: usize = 4096;

/// A program to run once on every rank.
#[derive(Debug)]
pub struct Launch {
    /// The job's name in the names of its logs.
    pub label: &'static str,
    pub program: PathBuf,
    /// Its arguments, the same on every rank.
    pub args: Vec<OsString>,
    pub ranks: usize,
    /// The hosts of the ranks, each of as many; this one if there are none.
    pub hosts: Vec<String>,
    /// The store's port; a free one where there is none.
    pub port: Option<u16>,
    /// The folder for the job's folder of logs.
    pub logs: PathBuf,
    pub patience: Patience,
}

/// How long the launcher waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// After the first failure, or after Ctrl-C, for the ranks to end by themselves.
    pub grace: Duration,
    /// After SIGTERM, before SIGKILL.
    pub term: Duration,
    /// For the whole job.
    pub job: Option<Duration>,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            // Twice what a wait on the device may take, so that a rank which waits for a lost one ends by its
            // own error.
            grace: Duration::from_secs(20),
            term: Duration::from_secs(3),
            job: None,
        }
    }
}

impl Launch {
    /// Runs the job to its end. Prints rank 0's output, then the ends of the failing ranks' logs, with the
    /// cause first.
    ///
    /// The calling thread must be the one that lives longest in this process: a rank is killed when the
    /// thread that started it ends.
    pub fn run(&self) -> Result<()> {
        let hosts = self.hosts.len().max(1);
        if !(1..=LARGEST_WORLD).contains(&self.ranks) || !self.ranks.is_multiple_of(hosts) {
            return Err(Error::failed(format!(
                "{} ranks asked for: a job has 1 to {LARGEST_WORLD}, as many on each of {hosts} hosts",
                self.ranks
            )));
        }
        let first = self.hosts.first().map(String::as_str);
        let identity = Identity::new(first, self.port)?;
        let logs = LogFolder::create(&self.logs, self.label)?;
        // Before the first rank starts, so that no Ctrl-C is missed.
        let mut supervisor = Supervisor::new(self.patience)?;
        for index in 0..self.ranks {
            // Ranks already started die with their `Rank` when this returns early.
            supervisor.watch(Rank::start(self, index, &identity, &logs)?);
        }
        let verdict = supervisor.run();
        let stuck = supervisor.finish();
        self.judge(verdict, stuck, &logs)
    }

    fn judge(&self, verdict: Verdict, stuck: Vec<usize>, logs: &LogFolder) -> Result<()> {
        let still_there = (!stuck.is_empty()).then(|| {
            format!(
                "ranks {stuck:?} are still there after SIGKILL: the kernel holds them, most likely in a \
                 driver call"
            )
        });
        match verdict {
            Verdict::Ended(failures) => {
                let Some(&(rank, end)) = failures.first() else {
                    return still_there.map_or(Ok(()), |why| Err(Error::Failed(why)));
                };
                show_tail(rank, end, &logs.rank(rank), LINES_OF_CULPRIT);
                for &(rank, end) in &failures[1..] {
                    // Rank 0's output was passed through.
                    if rank != 0 {
                        show_tail(rank, end, &logs.rank(rank), LINES_OF_OTHERS);
                    }
                }
                if let Some(why) = still_there {
                    eprintln!("{why}");
                }
                Err(Error::RankFailed {
                    rank,
                    world: self.ranks,
                    end,
                    log: logs.rank(rank),
                })
            }
            Verdict::Interrupted(signal) => Err(Error::Interrupted(signal)),
            Verdict::TimedOut { limit, running } => Err(Error::JobTimeout {
                limit,
                running,
                logs: logs.0.clone(),
            }),
        }
    }
}

/// How much is shown of the log of the rank that failed.
const LINES_OF_CULPRIT: usize = 30;
/// And of each rank that ended because of it.
const LINES_OF_OTHERS: usize = 3;

fn show_tail(rank: usize, end: End, path: &Path, lines: usize) {
    match log::tail(path, lines) {
        // The error that follows names the rank and its end.
        Ok(tail) if tail.is_empty() => {}
        Ok(tail) => {
            eprintln!("---- rank {rank} {end}; the end of its log:");
            for line in tail {
                eprintln!("{line}");
            }
            eprintln!("----");
        }
        Err(error) => eprintln!("{error}"),
    }
}
