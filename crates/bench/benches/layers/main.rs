//! The criterion benches of every layer: `cargo bench -p warpweave-bench`.
//!
//! The process that cargo starts becomes rank 0 and starts itself again for every other rank: on all GPUs where there are some
//! and this was built with the feature `nvcc`, else on the host backend, with a rank for each core, two to four of them.
//! `WARPWEAVE_BENCH_DEVICE` (`host` or `cuda`) and `WARPWEAVE_BENCH_RANKS` choose otherwise. Under a launcher, as
//! `cargo xtask launch`, it starts nothing and is the rank that it is told to be.
//!
//! Rank 0 alone runs criterion, whose counts come from wall time; the others follow its orders ([`lockstep`]).

mod device;
mod entries;
mod host;
mod launch;
mod lockstep;

use std::process::ExitCode;

use criterion::Criterion;
use warpweave_bench::collectives::NcclBackend;
use warpweave_bench::command::device::{Choice, choose, timeout};
use warpweave_bench::command::part;
use warpweave_bench::inject::Injection;
use warpweave_bench::{BenchError, Result};
use warpweave_comm::{Job, Launcher};
use warpweave_symm_mem::Host;

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
        return take_part(&job, criterion);
    }
    let Started { job, followers } = launch::start()?;
    take_part(&job, criterion)?;
    followers.join()
}

fn take_part(job: &Job, criterion: Option<Criterion>) -> Result<()> {
    match choose(launch::device()?, job)? {
        Choice::Host => bench(job, Host::with_timeout(timeout()?), criterion),
        Choice::Cuda(cuda) => bench(job, *cuda, criterion),
    }
}

fn bench<B: NcclBackend>(job: &Job, backend: B, criterion: Option<Criterion>) -> Result<()> {
    let injection = Injection::new(None, job.rank(), job.timeout());
    part::take(job, backend, injection, |session| {
        let clock = device::clock(session)?;
        let lockstep = Lockstep::new(session, entries::all(session, &clock)?);
        match criterion {
            Some(criterion) => lockstep.lead(criterion),
            None => lockstep.follow(),
        }
    })
}

/// A usage error of an environment variable.
fn unusable(variable: &str, value: &str, what: &str) -> BenchError {
    BenchError::Usage(format!("{variable} is `{value}`, which is not {what}"))
}
