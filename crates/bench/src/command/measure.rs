//! `warpweave measure`.

use std::io::Write;

use warpweave_comm::{Job, Measured};
use warpweave_symm_mem::Host;

use super::bench::check_place;
use super::device::{self, Choice};
use super::kept::{keep_costs, keep_machine};
use super::part;
use crate::cli::MeasureArgs;
use crate::collectives::NcclBackend;
use crate::error::{BenchError, Result};
use crate::inject::Injection;
use crate::measure;

/// Takes this rank's part in measuring the machine.
pub(super) fn measure(args: &MeasureArgs) -> Result<bool> {
    if let Some(path) = &args.out {
        check_place("--out", path)?;
    }
    let job = Job::from_env()?;
    match device::choose(args.device, &job)? {
        Choice::Host => take_part(args, &job, Host::with_timeout(device::timeout()?)),
        Choice::Cuda(cuda) => take_part(args, &job, *cuda),
    }
}

fn take_part<B: NcclBackend>(args: &MeasureArgs, job: &Job, backend: B) -> Result<bool> {
    let injection = Injection::new(None, job.rank(), job.timeout());
    part::take(job, backend, injection, |session| {
        let kept = Measured::of_ranks(&session.backend, session.exchange.as_ref())?;
        let found = measure::run(session)?;
        if session.rank() == 0 {
            write(&found.machine, args)?;
            if let Some(kept) = kept {
                keep_machine(&kept, &found.machine)?;
                keep_costs(&kept, found.costs)?;
            }
        }
        Ok(true)
    })
}

fn write(text: &str, args: &MeasureArgs) -> Result<()> {
    match &args.out {
        Some(path) => std::fs::write(path, text).map_err(|source| BenchError::File {
            path: path.clone(),
            source,
        }),
        None => Ok(std::io::stdout().lock().write_all(text.as_bytes())?),
    }
}
