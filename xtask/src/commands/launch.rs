//! `cargo xtask launch`: any program on every rank, as `torchrun` and `mpirun` do it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::launch::{Launch, Patience};
use crate::place::Place;

/// The options of every command that starts ranks.
#[derive(Debug, Default, clap::Args)]
pub struct JobOptions {
    /// The store's port on the host of rank 0 [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Hosts for as many ranks each, by ssh without a password, the first of them for rank 0; the program and
    /// the current folder have the same paths there [default: this host]
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// The folder for the ranks' logs [default: target/warpweave/logs]
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// End the job after so many seconds [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
    /// How long the other ranks have to end by themselves after one has failed; keep it above
    /// WARPWEAVE_TIMEOUT_MS, by which a rank that waits for the lost one on its device gives up and says for
    /// whom it waited [default: 20]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub grace: Option<Duration>,
}

impl JobOptions {
    /// A job of this program with these options.
    pub fn launch(
        &self,
        label: &'static str,
        program: PathBuf,
        args: Vec<OsString>,
        ranks: usize,
    ) -> Result<Launch> {
        let logs = match &self.logs {
            Some(logs) => logs.clone(),
            None => Place::find()?.results("logs"),
        };
        Ok(Launch {
            label,
            program,
            args,
            ranks,
            hosts: self.hosts.clone(),
            port: self.port,
            logs,
            patience: self.patience(),
        })
    }

    /// The limits of a job with these options.
    pub fn patience(&self) -> Patience {
        let default = Patience::default();
        Patience {
            grace: self.grace.unwrap_or(default.grace),
            job: self.timeout,
            ..default
        }
    }
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
    let program = args
        .next()
        .ok_or_else(|| Error::usage("PROGRAM is missing"))?;
    let job = options
        .job
        .launch("launch", program.into(), args.collect(), options.ranks)?;
    job.run()
}
