//! Which device this rank runs on.

use std::time::Duration;

use warpweave_comm::Job;
use warpweave_symm_mem::Cuda;

use crate::cli::Device;
use crate::error::{BenchError, Result};

/// A backend with its device.
pub enum Choice {
    /// Processes of this machine.
    Host,
    /// A GPU.
    Cuda(Box<Cuda>),
}

/// How long a wait on the device may take: `WARPWEAVE_TIMEOUT_MS`, ten seconds without.
///
/// # Errors
/// [`BenchError::Usage`] for what is no time.
pub fn timeout() -> Result<Duration> {
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

/// The device of this rank: the GPU of its number among the ranks of the host, or the host.
///
/// # Errors
/// [`BenchError::TooFewDevices`]; there is no GPU where one was asked for; what the driver reports.
pub fn choose(wanted: Device, job: &Job) -> Result<Choice> {
    let devices = match (wanted, Cuda::device_count()) {
        (Device::Host, _) | (Device::Auto, Ok(0)) => return Ok(Choice::Host),
        (Device::Auto, Err(error)) if error.is_unavailable() => {
            tracing::info!("host backend: {error}");
            return Ok(Choice::Host);
        }
        (_, devices) => devices?,
    };
    let oversubscribe = std::env::var("WARPWEAVE_OVERSUBSCRIBE").is_ok_and(|v| v == "1");
    let ordinal = match job.local_rank() {
        rank if rank < devices => rank,
        rank if oversubscribe && devices > 0 => rank % devices,
        rank => return Err(BenchError::TooFewDevices { rank, devices }),
    };
    Ok(Choice::Cuda(Box::new(
        Cuda::new(ordinal)?.with_timeout(timeout()?),
    )))
}
