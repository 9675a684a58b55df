//! One rank of a job, from joining to leaving it: its device, its part, and the end of a process that has
//! failed.

use std::io::Write;
use std::time::Duration;

use warpweave_comm::{Job, Store};
use warpweave_symm_mem::{Cuda, Host};

use crate::cli::Device;
use crate::collectives::NcclBackend;
use crate::error::{BenchError, Result};
use crate::inject::{InjectedFault, Injection};
use crate::logging;
use crate::session::{ExecuteBackend, Session};

/// What a rank does in a job, on either backend.
pub trait Part {
    /// Does it: true if all was right. Collective.
    fn run<B: NcclBackend>(self, session: &Session<B>) -> Result<bool>;
}

/// Joins `job` on the `device` that is asked for, does `part`, and leaves once all ranks have done theirs.
/// After an error, which the other ranks receive, the process ends here.
///
/// # Errors
/// The job cannot be joined; [`BenchError::TooFewDevices`]; there is no GPU where one was asked for.
pub fn take_part(
    job: &Job,
    device: Device,
    fault: Option<InjectedFault>,
    part: impl Part,
) -> Result<bool> {
    match choose(device, job)? {
        None => on(job, Host::with_timeout(timeout()?), fault, part),
        Some(cuda) => on(job, cuda, fault, part),
    }
}

fn on<B: NcclBackend>(
    job: &Job,
    backend: B,
    fault: Option<InjectedFault>,
    part: impl Part,
) -> Result<bool> {
    // A stalled rank must outlive both the waits on the device and the exchange in which it is missed.
    let patience = backend.timeout() * 3 + job.timeout() + Duration::from_secs(1);
    let injection = Injection::new(fault, job.rank(), patience);
    let session = Session::new(Store::join(job)?, backend, injection)?;
    // Rank 0 keeps the store until all have come this far.
    let outcome = part
        .run(&session)
        .and_then(|right| session.on_all("end", Ok(right)));
    // The session is alive here: dropping it may take longer than there is.
    outcome.or_else(|error| give_up(&session, &error))
}

/// Sends `error` to the other ranks and ends the process, with the status that tells a launcher which rank to
/// name.
pub fn give_up<B: ExecuteBackend>(session: &Session<B>, error: &BenchError) -> ! {
    session.abandon(error);
    fail(error)
}

/// How long a wait on the device may take: `WARPWEAVE_TIMEOUT_MS`, ten seconds without.
pub(crate) fn timeout() -> Result<Duration> {
    let Ok(text) = std::env::var("WARPWEAVE_TIMEOUT_MS") else {
        return Ok(Duration::from_secs(10));
    };
    match text.trim().parse() {
        Ok(ms @ 1..=86_400_000) => Ok(Duration::from_millis(ms)),
        _ => Err(BenchError::Usage(format!(
            "WARPWEAVE_TIMEOUT_MS is `{text}`, which is not a number of milliseconds from 1 to 86400000"
        ))),
    }
}

/// The GPU of this rank's number among the ranks of the host; `None` for the host backend.
fn choose(wanted: Device, job: &Job) -> Result<Option<Cuda>> {
    let devices = match (wanted, Cuda::device_count()) {
        (Device::Host, _) | (Device::Auto, Ok(0)) => return Ok(None),
        (Device::Auto, Err(error)) if error.is_unavailable() => {
            tracing::info!("host backend: {error}");
            return Ok(None);
        }
        (_, devices) => devices?,
    };
    let oversubscribe = std::env::var("WARPWEAVE_OVERSUBSCRIBE").is_ok_and(|v| v == "1");
    let ordinal = match job.local_rank() {
        rank if rank < devices => rank,
        rank if oversubscribe && devices > 0 => rank % devices,
        rank => return Err(BenchError::TooFewDevices { rank, devices }),
    };
    Ok(Some(Cuda::new(ordinal)?.with_timeout(timeout()?)))
}

unsafe extern "C" {
    /// Ends the process at once (POSIX).
    fn _exit(status: i32) -> !;
}

/// Prints why this rank gives up, and ends the process with the status that tells a launcher so.
///
/// Nothing is dropped and no exit handler runs. After the loss of a peer some work cannot be ended in bounded
/// time: an NCCL kernel that waits for the peer, or a thread inside NCCL's abort. Dropping a session may wait
/// for the kernel. The exit handlers of NCCL and CUDA free what the thread still uses: the process would die
/// of a signal, and its launcher would blame the wrong rank. The operating system and the driver free
/// everything all the same.
pub(crate) fn fail(error: &BenchError) -> ! {
    // A reader that has closed the pipe needs no message.
    let told = matches!(error, BenchError::Report(error) if error.is_closed_pipe());
    if !told {
        let rank = std::env::var("WARPWEAVE_RANK").ok();
        let who = rank.map_or(String::new(), |rank| format!(" (rank {rank})"));
        // With standard error gone too, the exit status is all that is left.
        let _ = writeln!(std::io::stderr(), "error{who}: {error}");
    }
    logging::finish();
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` takes any status, may be called by any thread at any time, and does not return.
    unsafe { _exit(error.exit_status().into()) }
}
