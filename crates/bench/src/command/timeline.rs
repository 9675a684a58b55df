//! `warpweave timeline`.

use std::io::Write;

use warpweave_comm::Job;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::{Configuration, Machine, algorithms, simulate, trace};
use warpweave_symm_mem::Host;

use super::bench::check_place;
use super::device::{self, Choice};
use super::part;
use super::plan::{machine, of, write_trace};
use crate::cli::TimelineArgs;
use crate::error::Result;
use crate::inject::Injection;
use crate::session::Session;

/// Calls before the one that is looked at.
const WARM_UP: usize = 3;

/// Takes this rank's part in a call that is timed operation by operation.
pub(super) fn timeline(args: &TimelineArgs) -> Result<bool> {
    check_place("--out", &args.out)?;
    let configuration = algorithms::find(&args.name)?;
    let machine = args.machine.as_deref().map(machine).transpose()?;
    let job = Job::from_env()?;
    let run = Run {
        args,
        configuration,
        machine,
    };
    match device::choose(args.device, &job)? {
        Choice::Host => run.take_part(&job, Host::with_timeout(device::timeout()?)),
        Choice::Cuda(cuda) => run.take_part(&job, *cuda),
    }
}

struct Run<'a> {
    args: &'a TimelineArgs,
    configuration: Configuration,
    machine: Option<Machine>,
}

impl Run<'_> {
    fn take_part<B: ExecuteBackend>(&self, job: &Job, backend: B) -> Result<bool> {
        let injection = Injection::new(None, job.rank(), job.timeout());
        part::take(job, backend, injection, |session| {
            self.trace(session)?;
            Ok(true)
        })
    }

    fn trace<B: ExecuteBackend>(&self, session: &Session<B>) -> Result<()> {
        let problem = of(&self.args.problem);
        session.agree("the algorithm", &self.configuration.name())?;
        session.agree("the problem", &format!("{problem:?}"))?;
        let (rank, world) = (session.rank(), session.world());
        let plan = self.configuration.plan(rank, world, &problem)?;
        let mut bound = session.executor.bind(plan, &session.stream)?;
        bound.run()?;
        bound.synchronize()?;
        bound.tune(&session.executor)?;
        for _ in 0..WARM_UP {
            bound.run()?;
        }
        bound.synchronize()?;
        let measured = session.executor.timeline(&bound)?;
        if rank > 0 {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        let mut timelines = vec![measured];
        if let Some(machine) = &self.machine {
            let plans = self.configuration.plans(world, &problem)?;
            timelines.insert(0, simulate(&plans, machine, 1)?);
        }
        for timeline in &timelines {
            writeln!(out, "{timeline}")?;
        }
        let timelines: Vec<_> = timelines.iter().collect();
        write_trace(&self.args.out, &trace(&timelines), &mut out)
    }
}
