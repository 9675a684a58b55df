//! Starts the ranks of a job on this machine or by ssh on others, watches them, and ends all of them when one
//! fails. `cargo xtask launch` does this for any program, as `torchrun` and `mpirun` do.
//!
//! The contract with the program that is launched:
//!
//! - It reads its rank from `WARPWEAVE_RANK`, `WARPWEAVE_WORLD_SIZE` and `WARPWEAVE_LOCAL_RANK`, the store's
//!   address from `WARPWEAVE_STORE` (`host:port`; rank 0 listens there) and the job's secret from
//!   `WARPWEAVE_JOB_TOKEN`. It inherits all other variables. Nothing here clears a guard of NVLink multicast
//!   (`NCCL_NVLS_ENABLE`, `TORCH_SYMM_MEM_DISABLE_MULTICAST`, `NVSHMEM_DISABLE_NVLS`).
//! - A rank that did its work exits with 0. A rank that gives up because a peer is gone exits with
//!   [`PEER_LOST`], so that the launcher names the peer, not the rank that noticed. If all that ended say so,
//!   it names a rank that outlived the grace.
//! - A rank dies with the launcher, whatever ends the launcher. What a rank started dies with the rank.
//! - One failing rank ends the job. The others have [`JobOptions::grace`] to end with an error of their own,
//!   then get SIGTERM, and three seconds later SIGKILL.

mod job;
pub mod log;
mod rank;
mod remote;
mod supervisor;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;

use crate::cargo::Kept;
use crate::error::{End, Error, Result};
use crate::place::Place;
use job::Identity;
use log::LogFolder;
use rank::Rank;
use supervisor::Supervisor;

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
    /// Where `program` is there for this launch alone.
    pub _kept: Option<Kept>,
    /// Its arguments, the same on every rank.
    pub args: Vec<OsString>,
    pub ranks: usize,
    pub job: JobOptions,
}

/// The options of every command that starts ranks.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct JobOptions {
    /// The store's port on the host of rank 0 [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Hosts for as many ranks each, by ssh without a password, the first of them for rank 0; the program and
    /// the current folder have the same paths there [default: this host]
    #[arg(
        long,
        value_name = "HOST,…",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub hosts: Vec<String>,
    /// The folder for the ranks' logs [default: target/warpweave/logs]
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// End the job after so many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// How long the other ranks have to end by themselves after one has failed; keep it above
    /// WARPWEAVE_TIMEOUT_MS, by which a rank that waits for the lost one on its device gives up and says for
    /// whom it waited
    // Twice that time, so that such a rank ends by its own error.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "20")]
    pub grace: Duration,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=1e6).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("not a number of seconds from 0 to 1000000".into()),
    }
}

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Number of ranks
    #[arg(long, short = 'n')]
    ranks: usize,
    #[command(flatten)]
    job: JobOptions,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// Runs the program on every rank.
pub fn run(options: Options) -> Result<()> {
    let mut args = options.program.into_iter();
    let missing = || Error::usage("PROGRAM is missing");
    let program = args.next().ok_or_else(missing)?;
    Launch {
        label: "launch",
        program: program.into(),
        _kept: None,
        args: args.collect(),
        ranks: options.ranks,
        job: options.job,
    }
    .run()
}

impl Launch {
    /// Runs the job to its end. Prints rank 0's output, then the ends of the failing ranks' logs, with the
    /// cause first.
    ///
    /// The calling thread must be the one that lives longest in this process: a rank is killed when the
    /// thread that started it ends.
    pub fn run(&self) -> Result<()> {
        let hosts = self.job.hosts.len().max(1);
        if !(1..=LARGEST_WORLD).contains(&self.ranks) || !self.ranks.is_multiple_of(hosts) {
            return Err(Error::Usage(format!(
                "{} ranks asked for: a job has 1 to {LARGEST_WORLD}, as many on each of {hosts} hosts",
                self.ranks
            )));
        }
        let first = self.job.hosts.first().map(String::as_str);
        let identity = Identity::new(first, self.job.port)?;
        let logs = LogFolder::create(&self.logs()?, self.label)?;
        // Before the first rank starts, so that no Ctrl-C is missed.
        let mut supervisor = Supervisor::new(self.job.grace, self.job.timeout, &logs.0)?;
        for index in 0..self.ranks {
            // Ranks already started die with their `Rank` when this returns early.
            supervisor.watch(Rank::start(self, index, &identity, &logs)?);
        }
        let failures = supervisor.run();
        let (stuck, written) = supervisor.finish();
        let verdict = failures.and_then(|failures| self.judge(&failures, &stuck, &logs));
        if let (Err(_), Err(error)) = (&verdict, &written) {
            eprintln!("{error}");
        }
        verdict.and(written)
    }

    /// The folder for the job's folder of logs.
    pub fn logs(&self) -> Result<PathBuf> {
        let default = || Ok(Place::find()?.results("logs"));
        self.job.logs.clone().map_or_else(default, Ok)
    }

    fn judge(&self, failures: &[(usize, End)], stuck: &[usize], logs: &LogFolder) -> Result<()> {
        let still_there = format!(
            "ranks {stuck:?} are still there after SIGKILL: the kernel holds them, most likely in a driver \
             call"
        );
        let Some((&(rank, end), others)) = failures.split_first() else {
            return match stuck {
                [] => Ok(()),
                _ => Err(Error::Failed(still_there)),
            };
        };
        show_tail(rank, end, &logs.rank(rank), LINES_OF_CULPRIT);
        // Rank 0's output was passed through.
        for &(rank, end) in others.iter().filter(|(rank, _)| *rank != 0) {
            show_tail(rank, end, &logs.rank(rank), LINES_OF_OTHERS);
        }
        if !stuck.is_empty() {
            eprintln!("{still_there}");
        }
        Err(Error::RankFailed {
            rank,
            world: self.ranks,
            end,
            log: logs.rank(rank),
        })
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
