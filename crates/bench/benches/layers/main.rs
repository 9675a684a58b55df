//! The criterion benches of every layer: `cargo bench -p warpweave-bench`.
//!
//! The process that cargo starts becomes rank 0 and starts itself again for every other rank: on all GPUs
//! where there are some and this was built with the feature `nvcc`, else on the host backend, with a rank for
//! each core, two to four of them. `WARPWEAVE_BENCH_DEVICE` (`host` or `cuda`) and `WARPWEAVE_BENCH_RANKS`
//! choose otherwise. Under a launcher, such as `cargo xtask launch`, it starts nothing and takes the rank
//! that the launcher gives it.
//!
//! Rank 0 alone runs criterion, whose counts come from wall time; the others follow its orders
//! ([`lockstep`]).

mod entries;
mod launch;
mod lockstep;
mod timed;

use std::process::ExitCode;

use criterion::Criterion;
use warpweave_bench::clock::Clock;
use warpweave_bench::collectives::NcclBackend;
use warpweave_bench::job::{Part, take_part};
use warpweave_bench::session::Session;
use warpweave_bench::{BenchError, Result};
use warpweave_comm::{Job, Launcher};

use launch::Started;
use lockstep::Lockstep;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn run() -> Result<()> {
    let job = Job::from_env()?;
    if launch::is_follower() {
        launch::die_with_parent()?;
    }
    // Before any rank is started: it ends the process if the options are wrong, or ask for help.
    let criterion = (job.rank() == 0).then(|| Criterion::default().configure_from_args());
    if job.launcher() != Launcher::Alone {
        take_part(&job, launch::device()?, None, Layers(criterion))?;
        return Ok(());
    }
    let Started { job, followers } = launch::start()?;
    take_part(&job, launch::device()?, None, Layers(criterion))?;
    followers.join()
}

/// This rank's part: rank 0 has criterion.
struct Layers(Option<Criterion>);

impl Part for Layers {
    fn run<B: NcclBackend>(self, session: &Session<B>) -> Result<bool> {
        let clock = Clock::new(session, lockstep::CALLS)?;
        let lockstep = Lockstep::new(session, entries::all(session, &clock)?);
        match self.0 {
            Some(criterion) => lockstep.lead(criterion)?,
            None => lockstep.follow()?,
        }
        Ok(true)
    }
}

/// A usage error of an environment variable.
fn unusable(variable: &str, value: &str, what: &str) -> BenchError {
    BenchError::Usage(format!("{variable} is `{value}`, which is not {what}"))
}
