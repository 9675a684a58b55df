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
