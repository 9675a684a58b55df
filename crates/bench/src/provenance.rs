//! Where numbers come from: enough to judge them by, and no date, which says nothing about a machine.

use std::fmt;

use serde::Serialize;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::BackendKind;

use crate::session::Session;

/// The machine and the software of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Provenance {
    /// `host` or `cuda`.
    pub backend: &'static str,
    /// Name of the devices, as the driver gives it.
    pub device: String,
    /// Number of ranks, each with a device.
    pub ranks: usize,
    /// What the backend runs on: the CUDA version of the driver, or the kernel.
    pub platform: String,
    /// The driver's own version, on the CUDA backend.
    pub driver: Option<String>,
    /// NCCL's version, where it is there.
    pub nccl: Option<String>,
    /// The commit that was built, with `+` if files had been changed.
    pub commit: &'static str,
    /// Cores of the host.
    pub cores: usize,
}

impl Provenance {
    /// Of this run.
    pub fn of<B: ExecuteBackend>(session: &Session<B>, versions: Versions) -> Self {
        let device = session.backend.device();
        Self {
            backend: kind_name(B::KIND),
            // Each rank's device has a number; what counts is what they are.
            device: device
                .name
                .split(" (device")
                .next()
                .unwrap_or_default()
                .into(),
            ranks: session.world(),
            platform: device.driver.clone(),
            driver: versions.driver,
            nccl: versions.nccl,
            commit: env!("WARPWEAVE_COMMIT"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        Self {
            backend: "host",
            device: "host".into(),
            ranks: 4,
            platform: "Linux".into(),
            driver: None,
            nccl: None,
            commit: "unknown",
            cores: 2,
        }
    }
}

/// Versions of libraries that a backend loads.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    /// The NVIDIA driver's.
    pub driver: Option<String>,
    /// NCCL's version.
    pub nccl: Option<String>,
}

/// The name of a backend on command lines and in reports.
pub const fn kind_name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::Host => "host",
        BackendKind::Cuda => "cuda",
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}, {}", self.ranks, self.device, self.platform)?;
        for (name, version) in [("driver", &self.driver), ("NCCL", &self.nccl)] {
            if let Some(version) = version {
                write!(f, ", {name} {version}")?;
            }
        }
        write!(f, ", {} cores, commit {}", self.cores, self.commit)
    }
}
