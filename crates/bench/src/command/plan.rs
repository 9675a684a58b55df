//! `warpweave plan` and `warpweave timeline`.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use warpweave_comm::Job;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::Problem;
use warpweave_overlap::simulate::simulate_configuration;
use warpweave_overlap::{Machine, Timeline, check, show, simulate, trace};
use warpweave_report::file::{self, check_place};
use warpweave_symm_mem::{DType, require_same};

use super::choice;
use super::measure::{machine, machine_or_measured};
use crate::cli::{PlanCommand, ProblemArgs, SimulateArgs, TimelineArgs};
use crate::collectives::NcclBackend;
use crate::error::{BenchError, Result};
use crate::job::{self, Part};
use crate::plans::timeline as timeline_of;
use crate::progress::{Progress, aside};
use crate::session::Session;
use crate::suite::scaling_of;

/// Prints what `command` asks for. False if a plan does not hold.
pub(super) fn plan(command: &PlanCommand, out: &mut impl Write) -> Result<bool> {
    match command {
        PlanCommand::Show {
            name,
            rank,
            world,
            problem,
        } => {
            let plan = algorithms::find(name)?.plan(*rank, *world, &of(problem)?)?;
            write!(out, "{}", show(&plan))?;
        }
        PlanCommand::Check {
            name,
            world,
            calls,
            problem,
        } => {
            let problem = of(problem)?;
            let mut algorithms = match name.as_str() {
                "all" => algorithms::every(),
                name => vec![algorithms::find(name)?],
            };
            if name == "all" {
                algorithms.retain(|one| one.takes(&problem));
            }
            return check_all(&algorithms, (world, *calls), &problem, out);
        }
        PlanCommand::Explain {
            operation,
            choice: args,
            problem,
        } => choice::explain(*operation, args, &of(problem)?, out)?,
        PlanCommand::Evaluate {
            choice: args,
            multicast,
        } => choice::evaluate(args, *multicast, out)?,
        PlanCommand::Compare(args) => choice::compare(args, out)?,
        PlanCommand::Simulate(args) => write!(out, "{}", simulated(args)?)?,
        PlanCommand::Trace {
            simulate,
            out: path,
        } => write_trace(path, &trace(&[&simulated(simulate)?]), out)?,
    }
    Ok(true)
}

fn simulated(args: &SimulateArgs) -> Result<Timeline> {
    let algorithm = algorithms::find(&args.name)?;
    let machine = machine_or_measured(args.machine.as_deref(), args.world)?;
    let problem = (args.world, &of(&args.problem)?);
    let (_, timeline) =
        simulate_configuration::<BenchError>(&algorithm, problem, &machine, args.calls.into())?;
    Ok(timeline)
}

fn write_trace(path: &Path, text: &str, out: &mut impl Write) -> Result<()> {
    file::write(path, text)?;
    let path = path.display();
    Ok(writeln!(out, "{path}: open it in ui.perfetto.dev")?)
}

/// Checks on all cores, and prints in the order of the algorithms.
fn check_all(
    algorithms: &[Configuration],
    (worlds, calls): (&[usize], usize),
    problem: &Problem,
    out: &mut impl Write,
) -> Result<bool> {
    let cases: Vec<_> = algorithms
        .iter()
        .flat_map(|algorithm| worlds.iter().map(move |&world| (algorithm, world)))
        .collect();
    // Each case has a channel, so that reports are received in order.
    let (senders, reports): (Vec<_>, Vec<_>) = cases.iter().map(|_| mpsc::channel()).unzip();
    let (queue, progress) = (Mutex::new(cases.iter().zip(senders)), Progress::new(0));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(((algorithm, world), sender)) = next() {
            let plans = algorithm.plans(*world, problem);
            let report = plans.map(|plans| check(&plans, calls));
            if sender.send(report).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
        let mut holds = true;
        for (place, report) in reports.into_iter().enumerate() {
            // A thread that panics ends the scope so.
            let Ok(report) = report.recv() else { break };
            let report = report?;
            holds &= report.holds();
            aside(|| writeln!(out, "{report}"))?;
            progress.at(place, cases.len(), cases[place].0.name());
        }
        Ok(holds)
    })
}

fn of(args: &ProblemArgs) -> Result<Problem> {
    let (shape, dtype) = (args.shape, args.dtype);
    if args.scales.is_some() && dtype != DType::E4m3 {
        let why = format!("--scales does not apply to operands of {dtype}");
        return Err(BenchError::Usage(why));
    }
    let problem = Problem::new(shape.m, shape.n, shape.k, dtype);
    let scaling = scaling_of(dtype, args.scales);
    Ok(problem.with_multicast(args.multicast).with_scaling(scaling))
}

/// Calls before the one that is timed.
const WARM_UP: usize = 3;

/// Takes this rank's part in a call that is timed operation by operation.
pub(super) fn timeline(args: &TimelineArgs) -> Result<bool> {
    check_place("--out", &args.out)?;
    let part = Traced {
        args,
        configuration: algorithms::find(&args.name)?,
        machine: args.machine.as_deref().map(machine).transpose()?,
    };
    job::take_part(&Job::from_env()?, args.device, None, part)
}

struct Traced<'a> {
    args: &'a TimelineArgs,
    configuration: Configuration,
    machine: Option<Machine>,
}

impl Part for Traced<'_> {
    fn run<B: NcclBackend>(self, session: &Session<B>) -> Result<bool> {
        let problem = of(&self.args.problem)?;
        let exchange = session.exchange.as_ref();
        require_same(exchange, "the algorithm", &self.configuration.name())?;
        require_same(exchange, "the problem", &format!("{problem:?}"))?;
        let (rank, world) = (session.rank(), session.world());
        let plans = self.configuration.plans(world, &problem)?;
        let measured = timeline_of(session, plans, WARM_UP)?;
        if rank > 0 {
            return Ok(true);
        }
        let mut out = std::io::stdout();
        let mut timelines = vec![measured];
        if let Some(machine) = &self.machine {
            let plans = self.configuration.plans(world, &problem)?;
            timelines.insert(0, simulate(&plans, machine, 1)?);
        }
        for timeline in &timelines {
            writeln!(out, "{timeline}")?;
        }
        let timelines: Vec<_> = timelines.iter().collect();
        write_trace(&self.args.out, &trace(&timelines), &mut out)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use warpweave_report::timeline::Trace;
    use warpweave_symm_mem::DType;

    use super::*;

    #[test]
    fn two_timelines_of_one_file_are_told_apart() {
        let plans = algorithms::find("rowParallelLinear").unwrap();
        let plans = plans
            .plans(2, &Problem::new(64, 48, 40, DType::Bf16))
            .unwrap();
        let machine = Machine::named("h200x4").unwrap();
        let mut first = simulate(&plans, &machine, 1).unwrap();
        first.machine = "another".into();
        let second = simulate(&plans, &machine, 1).unwrap();
        let read: Trace = serde_json::from_str(&trace(&[&first, &second])).unwrap();
        assert_eq!(read.timelines.len(), 2);
        for (read, written) in read.timelines.iter().zip([&first, &second]) {
            assert_eq!(read.about.plan, written.plan);
            assert_eq!(read.about.machine, written.machine);
            assert!(
                (read.end() - written.total()).abs() < 0.01,
                "{}",
                read.end()
            );
            let of_rank_1 = read.tracks.iter().filter(|track| track.process == "rank 1");
            assert!(of_rank_1.flat_map(|track| &track.slices).count() > 1);
        }
    }
}
