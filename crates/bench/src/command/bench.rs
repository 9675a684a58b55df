//! `warpweave bench`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use warpweave_comm::{Job, Measured};
use warpweave_symm_mem::{BackendKind, DType, Host};

use super::device::{self, Choice};
use super::kept::keep_costs;
use super::part;
use super::report::{file_name, write_file};
use crate::baseline::Baselines;
use crate::cli::BenchArgs;
use crate::collectives::{self, NcclBackend};
use crate::error::{BenchError, Result};
use crate::inject::Injection;
use crate::peers::{Peers, torch_name};
use crate::report::page::{Source, page};
use crate::report::{self, View};
use crate::suite::{self, Settings, run_with};

/// Prints what there is to measure, and refuses options with which a run would be refused: a launcher can ask once, before
/// it starts the ranks.
pub(super) fn list(args: &BenchArgs, out: &mut impl Write) -> Result<bool> {
    settings(args)?;
    for suite in suite::ALL {
        writeln!(out, "{}: {}", suite.name, suite.reproduces)?;
        for (name, summary) in suite.catalogue() {
            writeln!(out, "  {name:<31}{summary}")?;
        }
    }
    Ok(true)
}

/// Prints what peers are to measure beside a run on `world` GPUs, a line a problem: the kind of its rows, the sizes, the
/// element type.
pub(super) fn peer_problems(args: &BenchArgs, world: usize, out: &mut impl Write) -> Result<bool> {
    match settings(args)? {
        Wanted::Plans(settings) => {
            let cases = args.suite.cases(&settings.implementations)?;
            for operation in cases.iter().filter_map(|case| case.operation) {
                for (shape, dtype) in settings.problems_on(BackendKind::Cuda, world) {
                    writeln!(out, "{} {shape} {}", operation.name(), torch_name(dtype))?;
                }
            }
        }
        Wanted::Collectives(settings) => {
            for size in settings.sizes_on(BackendKind::Cuda) {
                writeln!(out, "collectives {size} {}", torch_name(settings.dtype))?;
            }
        }
    }
    Ok(true)
}

/// Takes this rank's part in a run. True if every row that ran was right.
pub(super) fn bench(args: &BenchArgs) -> Result<bool> {
    let settings = settings(args)?;
    let job = Job::from_env()?;
    match device::choose(args.device, &job)? {
        Choice::Host => {
            let host = Host::with_timeout(device::timeout()?);
            take_part(args, &settings, &job, host)
        }
        Choice::Cuda(cuda) => take_part(args, &settings, &job, *cuda),
    }
}

/// What a suite is to measure.
enum Wanted {
    Plans(Settings),
    Collectives(collectives::Settings),
}

/// What `args` ask for, where all of it exists.
fn settings(args: &BenchArgs) -> Result<Wanted> {
    device::timeout()?;
    for (option, path) in [
        ("--json", &args.json),
        ("--markdown", &args.markdown),
        ("--report", &args.report),
        ("--plot", &args.plot),
        ("--costs", &args.costs),
    ] {
        if let Some(path) = path {
            check_place(option, path)?;
        }
    }
    if let Some(name) = &args.save_baseline {
        Baselines::new(&args.baselines).place(name, args.suite.name)?;
    }
    let dtype = args.dtype.unwrap_or(DType::Bf16);
    let iterations = args.iterations.map(|n| n as usize);
    let foreign = |option: &str, given: bool| match given {
        true => Err(BenchError::Usage(format!(
            "{option} says nothing to the suite {}",
            args.suite.name
        ))),
        false => Ok(()),
    };
    if args.suite.is_of_collectives() {
        foreign("--shape", !args.shapes.is_empty())?;
        collectives::ways(&args.implementations)?;
        return Ok(Wanted::Collectives(collectives::Settings {
            implementations: args.implementations.clone(),
            operations: args.operations.clone(),
            sizes: args.sizes.clone(),
            dtype,
            iterations,
            peers: args
                .peers
                .as_deref()
                .map(collectives::read_peers)
                .transpose()?,
        }));
    }
    foreign("--sizes", !args.sizes.is_empty())?;
    foreign("--op", !args.operations.is_empty())?;
    foreign("--plot", args.plot.is_some())?;
    foreign("--costs", args.costs.is_some())?;
    let alone = args.suite.operations.is_empty();
    let peers = args.peers.is_some() || args.peer_problems.is_some();
    foreign("--peers", alone && peers)?;
    args.suite.cases(&args.implementations)?;
    Ok(Wanted::Plans(Settings {
        suite: args.suite,
        implementations: args.implementations.clone(),
        problems: args.shapes.iter().map(|&shape| (shape, dtype)).collect(),
        dtype: args.dtype,
        iterations,
        peers: args.peers.as_deref().map(Peers::read).transpose()?,
    }))
}

/// A report that cannot be written is better known before the run than after it.
pub(super) fn check_place(option: &str, path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let why = if path.is_dir() {
        "it is a folder".into()
    } else if !folder.is_dir() {
        format!("there is no folder {}", folder.display())
    } else {
        return Ok(());
    };
    Err(BenchError::Usage(format!(
        "{option} {}: {why}",
        path.display()
    )))
}

fn take_part<B: NcclBackend>(
    args: &BenchArgs,
    wanted: &Wanted,
    job: &Job,
    backend: B,
) -> Result<bool> {
    // A stalled rank must outlive both the waits on the device and the exchange in which it is missed.
    let patience = backend.timeout() * 3 + job.timeout() + Duration::from_secs(1);
    let injection = Injection::new(args.inject, job.rank(), patience);
    part::take(job, backend, injection, |session| {
        let first = session.rank() == 0;
        match wanted {
            Wanted::Plans(settings) => {
                let each = |report: &_| match first {
                    true => write_json(report, args),
                    false => Ok(()),
                };
                finish(first, &run_with(session, settings, each)?, args)
            }
            Wanted::Collectives(settings) => {
                let kept = Measured::of_ranks(&session.backend, session.exchange.as_ref())?;
                let report = collectives::run(session, settings)?;
                let is_right = finish(first, &report, args)?;
                // What was left out would never be picked again.
                let is_whole = settings.implementations.is_empty() && settings.sizes.is_empty();
                if let Some(kept) = kept.filter(|_| first && is_whole && is_right) {
                    keep_costs(&kept, report.costs())?;
                }
                Ok(is_right)
            }
        }
    })
}

fn finish(first: bool, report: &impl View, args: &BenchArgs) -> Result<bool> {
    if first {
        write(report, args)?;
        save(report, args)?;
    }
    Ok(report.is_right())
}

fn write_json(report: &impl View, args: &BenchArgs) -> Result<()> {
    let Some(path) = &args.json else {
        return Ok(());
    };
    write_file(path, |out| as_json(report, out))
}

fn as_json(report: &impl View, out: &mut Vec<u8>) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    out.push(b'\n');
    Ok(())
}

/// Keeps the report as a baseline, where that is wanted and every row was right.
fn save(report: &impl View, args: &BenchArgs) -> Result<()> {
    let Some(name) = &args.save_baseline else {
        return Ok(());
    };
    if !report.is_right() {
        eprintln!("baseline {name} is not saved: a row is wrong");
        return Ok(());
    }
    let mut json = Vec::new();
    as_json(report, &mut json)?;
    let place = Baselines::new(&args.baselines).save(name, args.suite.name, &json)?;
    eprintln!("saved as baseline {name}: {}", place.display());
    Ok(())
}

fn write(report: &impl View, args: &BenchArgs) -> Result<()> {
    write_json(report, args)?;
    if let Some(path) = &args.markdown {
        write_file(path, |out| report.markdown(out))?;
    }
    if let Some(path) = &args.report {
        let source = Source {
            name: args.json.as_deref().map_or("none".into(), file_name),
            document: report.document(),
        };
        write_file(path, |out| out.write_all(page(&[source]).as_bytes()))?;
    }
    for (path, text) in [(&args.plot, report.plot()), (&args.costs, report.costs())] {
        if let (Some(path), Some(text)) = (path, text) {
            write_file(path, |out| {
                out.extend_from_slice(text.as_bytes());
                Ok(())
            })?;
        }
    }
    let mut out = std::io::stdout().lock();
    report.terminal(report::width(), &mut out)?;
    Ok(out.flush()?)
}
