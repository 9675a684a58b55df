//! Where the numbers of this run come from.

use warpweave_comm::nccl::NcclLibrary;
use warpweave_gemm::cublaslt;
use warpweave_report::{Devices, HOST, HostMachine, Provenance};
use warpweave_symm_mem::BackendKind;

use crate::error::Result;
use crate::session::{ExecuteBackend, Session};

/// The provenance of this run. Collective.
pub fn provenance<B: ExecuteBackend>(session: &Session<B>) -> Result<Provenance> {
    let info = session.backend.device();
    let name = session.device_name().to_owned();
    let mine = session.backend.device_identity();
    let mine = mine.map(|identity| (name, identity)).map_err(Into::into);
    let devices = session.agree("the devices", mine)?;
    let version = |of: fn() -> Option<String>| (B::KIND == BackendKind::Cuda).then(of).flatten();
    let features = [
        ("nvcc", cfg!(feature = "nvcc")),
        ("cutlass", cfg!(feature = "cutlass")),
    ];
    let features = features.into_iter().filter(|(_, is_on)| *is_on);
    Ok(Provenance {
        backend: kind_name(B::KIND).into(),
        devices: Devices::counted(&devices),
        ranks: session.world(),
        nodes: session.nodes.count(),
        host: HostMachine::this(),
        cuda: info.driver.strip_prefix("CUDA ").map(str::to_owned),
        driver: version(driver),
        nccl: version(nccl),
        cublaslt: version(cublaslt),
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("WARPWEAVE_COMMIT").into(),
        features: features.map(|(name, _)| name.into()).collect(),
    })
}

/// The name of a backend on command lines and in reports.
pub const fn kind_name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::Host => HOST,
        BackendKind::Cuda => "cuda",
    }
}

fn driver() -> Option<String> {
    driver_version(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// `580.95.05` from the first line of the driver's own description.
fn driver_version(text: &str) -> Option<String> {
    let mut words = text.lines().next()?.split_whitespace();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    words
        .find(|word| word.contains('.') && word.split('.').all(is_number))
        .map(str::to_owned)
}

fn nccl() -> Option<String> {
    Some(NcclLibrary::load().ok()?.version().to_string())
}

fn cublaslt() -> Option<String> {
    let version = cublaslt::Library::global().ok()?.version();
    let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
    Some(format!("{major}.{minor}.{patch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_names_its_version_in_its_first_line() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n\
                    GCC version: 12.2.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.12  Wed Sep 20 2023";
        assert_eq!(driver_version(open).as_deref(), Some("580.95.05"));
        assert_eq!(driver_version(closed).as_deref(), Some("535.104.12"));
        assert_eq!(driver_version("GCC version:\n"), None);
    }
}
