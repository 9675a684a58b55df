//! Which device this rank runs on.

use std::time::Duration;

use warpweave_comm::Job;
use warpweave_comm::nccl::NcclLibrary;
use warpweave_symm_mem::Cuda;

use crate::cli::Device;
use crate::error::{BenchError, Result};
use crate::provenance::Versions;

/// A backend with its device.
pub(super) enum Choice {
    /// Processes of this machine.
    Host,
    /// A GPU.
    Cuda(Box<Cuda>),
}

/// How long a wait on the device may take: `WARPWEAVE_TIMEOUT_MS`, ten seconds without.
pub(super) fn timeout() -> Result<Duration> {
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
pub(super) fn choose(wanted: Device, job: &Job) -> Result<Choice> {
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

/// Versions of what the CUDA backend loads.
pub(super) fn versions() -> Versions {
    Versions {
        driver: std::fs::read_to_string("/proc/driver/nvidia/version")
            .ok()
            .and_then(|text| driver_version(&text)),
        nccl: NcclLibrary::load()
            .ok()
            .map(|library| library.version().to_string()),
    }
}

/// `580.95.05` from the first line of the driver's own description.
fn driver_version(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .split('.')
                .all(|part| part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty())
    };
    words.into_iter().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::driver_version;

    #[test]
    fn the_driver_names_its_version_in_its_first_line() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.12  Wed Sep 20 09:35:17 UTC 2023";
        assert_eq!(driver_version(open).as_deref(), Some("580.95.05"));
        assert_eq!(driver_version(closed).as_deref(), Some("535.104.12"));
        assert_eq!(driver_version("GCC version:\n"), None);
    }
}
