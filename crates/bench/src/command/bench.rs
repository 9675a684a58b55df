//! `warpweave bench`.

use std::io::Write;
use std::time::Duration;

use warpweave_comm::Job;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::{DType, Host};

use super::device::{self, Choice};
use crate::cli::BenchArgs;
use crate::error::{BenchError, Result};
use crate::inject::Injection;
use crate::provenance::Versions;
use crate::report;
use crate::session::Session;
use crate::suite::{Settings, Suite, run};

/// Prints what there is to measure.
pub(super) fn list(out: &mut impl Write) -> Result<bool> {
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
            take_part(args, &settings, &job, host, Versions::default())
        }
        Choice::Cuda(cuda) => take_part(args, &settings, &job, *cuda, device::versions()),
    }
}

fn settings(args: &BenchArgs) -> Result<Settings> {
    // Unknown names are refused before the other ranks are waited for.
    args.suite.implementations(&args.implementations)?;
    let dtype = args.dtype.unwrap_or(DType::Bf16);
    Ok(Settings {
        suite: args.suite,
        implementations: args.implementations.clone(),
        problems: args.shapes.iter().map(|&shape| (shape, dtype)).collect(),
        dtype: args.dtype,
        iterations: args.iterations.map(|n| n as usize),
    })
}

fn take_part<B: ExecuteBackend>(
    args: &BenchArgs,
    settings: &Settings,
    job: &Job,
    backend: B,
    versions: Versions,
) -> Result<bool> {
    // A stalled rank must outlive both the waits on the device and the exchange in which it is missed.
    let patience = backend.timeout() * 3 + job.timeout() + Duration::from_secs(1);
    let injection = Injection::new(args.inject, job.rank(), patience);
    let session = Session::join(job, backend, injection)?;
    let outcome = run(&session, settings, versions).and_then(|report| {
        if session.rank() == 0 {
            write(&report, args)?;
        }
        // Rank 0 keeps the store until all have come this far.
        session.settle("end", Ok(Vec::new()))?;
        Ok(report.wrong().next().is_none())
    });
    if let Err(error) = &outcome {
        session.abandon(error);
    }
    outcome
}

fn write(report: &report::Report, args: &BenchArgs) -> Result<()> {
    if let Some(path) = &args.json {
        let failed = |source| BenchError::File {
            path: path.clone(),
            source,
        };
        let mut json = serde_json::to_string_pretty(report).map_err(|e| failed(e.into()))?;
        json.push('\n');
        std::fs::write(path, json).map_err(failed)?;
    }
    let mut out = std::io::stdout().lock();
    report::print(report, &mut out)?;
    Ok(out.flush()?)
}
