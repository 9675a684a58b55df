//! `warpweave bench`.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use warpweave_comm::Job;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::{DType, Host};

use super::device::{self, Choice};
use super::exit;
use crate::cli::BenchArgs;
use crate::error::{BenchError, Result};
use crate::inject::Injection;
use crate::report::{self, Report};
use crate::session::Session;
use crate::suite::{Settings, Suite, run};

/// Prints what there is to measure, and refuses options with which a run would be refused: a launcher can ask once, before
/// it starts the ranks.
pub(super) fn list(args: &BenchArgs, out: &mut impl Write) -> Result<bool> {
    settings(args)?;
    for suite in Suite::ALL {
        writeln!(out, "{}", suite.name())?;
        for (name, summary) in suite.catalogue() {
            writeln!(out, "  {name:<31}{summary}")?;
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

/// What `args` ask for, where all of it exists.
fn settings(args: &BenchArgs) -> Result<Settings> {
    args.suite.implementations(&args.implementations)?;
    device::timeout()?;
    for (option, path) in [("--json", &args.json), ("--markdown", &args.markdown)] {
        if let Some(path) = path {
            check_place(option, path)?;
        }
    }
    let dtype = args.dtype.unwrap_or(DType::Bf16);
    Ok(Settings {
        suite: args.suite,
        implementations: args.implementations.clone(),
        problems: args.shapes.iter().map(|&shape| (shape, dtype)).collect(),
        dtype: args.dtype,
        iterations: args.iterations.map(|n| n as usize),
    })
}

/// A report that cannot be written is better known before the run than after it.
fn check_place(option: &str, path: &Path) -> Result<()> {
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

fn take_part<B: ExecuteBackend>(
    args: &BenchArgs,
    settings: &Settings,
    job: &Job,
    backend: B,
) -> Result<bool> {
    // A stalled rank must outlive both the waits on the device and the exchange in which it is missed.
    let patience = backend.timeout() * 3 + job.timeout() + Duration::from_secs(1);
    let injection = Injection::new(args.inject, job.rank(), patience);
    let session = Session::join(job, backend, injection)?;
    let outcome = run(&session, settings).and_then(|report| {
        if session.rank() == 0 {
            write(&report, args)?;
        }
        // Rank 0 keeps the store until all have come this far.
        session.settle("end", Ok(Vec::new()))?;
        Ok(report.wrong().next().is_none())
    });
    if let Err(error) = &outcome {
        session.abandon(error);
        // The session is alive here: to drop it may take longer than there is.
        exit::fail(error);
    }
    outcome
}

fn write(report: &Report, args: &BenchArgs) -> Result<()> {
    if let Some(path) = &args.json {
        write_file(path, |out| {
            serde_json::to_writer_pretty(&mut *out, report)?;
            out.push(b'\n');
            Ok(())
        })?;
    }
    if let Some(path) = &args.markdown {
        write_file(path, |out| report::markdown(report, out))?;
    }
    let mut out = std::io::stdout().lock();
    report::terminal(report, report::width(), &mut out)?;
    Ok(out.flush()?)
}

fn write_file(path: &Path, fill: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Result<()> {
    let mut out = Vec::new();
    let written = fill(&mut out).and_then(|()| std::fs::write(path, out));
    written.map_err(|source| BenchError::File {
        path: path.into(),
        source,
    })
}
