//! The examination of a machine.

mod compilers;
mod devices;
mod libraries;
mod machine;
mod probe;
mod report;

#[cfg(test)]
use report::State;
pub use report::{Report, Use};

use crate::place;

/// Looks at everything that some part of Warpweave uses. Loads no CUDA library and changes nothing.
pub fn examine() -> Report {
    // In a bundle there is no workspace, and what is only needed to build is of no interest.
    let target = place::workspace()
        .ok()
        .map(|root| place::target_directory(&root));
    let toolchain = target
        .as_ref()
        .map(|target| target.join(warpweave_nvcc::layout::TOOLCHAIN));
    let mut findings = machine::examine();
    if let Some(target) = &target {
        findings.extend(compilers::examine(target));
    }
    findings.extend(devices::examine());
    findings.extend(libraries::examine(toolchain.as_deref()));
    findings.extend(devices::launchers());
    let multicast = devices::multicast(|name| std::env::var(name).ok());
    findings.push(multicast.about("multicast", Use::Optional));
    Report::new(findings)
}
