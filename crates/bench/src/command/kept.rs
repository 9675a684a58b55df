//! Figures of machines that are kept from one job to the next: where `bench` and `measure` leave them, and
//! `plan` finds them.

use warpweave_comm::collective::Costs;
use warpweave_comm::measured::{Figures, Measured};
use warpweave_overlap::Machine;
use warpweave_symm_mem::{BackendKind, Cuda};

use super::plan::machine;
use crate::error::Result;

/// The machine of predictions where none is named and none was measured.
const DEFAULT: &str = "h200x4";

/// Keeps `costs`, by which collectives are picked from then on; of operations that they lack, what was kept
/// stays.
///
/// # Errors
/// The file cannot be written. What was kept before is as it was.
pub(super) fn keep_costs(measured: &Measured, costs: Costs) -> Result<()> {
    if costs.is_empty() {
        return Ok(());
    }
    let mut kept: Costs = measured
        .read(Figures::Costs, str::parse)
        .unwrap_or_default();
    kept.replace(costs);
    say(&measured.write(Figures::Costs, &kept.to_string())?);
    Ok(())
}

/// Keeps the description of a machine.
///
/// # Errors
/// As [`keep_costs`].
pub(super) fn keep_machine(measured: &Measured, text: &str) -> Result<()> {
    say(&measured.write(Figures::Machine, text)?);
    Ok(())
}

fn say(path: &std::path::Path) {
    tracing::info!("figures of this machine are kept in {}", path.display());
}

/// The machine of this name or file; without one, this machine with `world` ranks where it was measured.
///
/// # Errors
/// There is no such machine.
pub(super) fn machine_or_measured(name: Option<&str>, world: usize) -> Result<Machine> {
    if let Some(name) = name {
        return machine(name);
    }
    let (kind, devices) = match Cuda::installed() {
        Ok(devices) if !devices.is_empty() => (BackendKind::Cuda, devices),
        _ => {
            let host = warpweave_symm_mem::Host::new();
            let info = warpweave_symm_mem::Backend::device(&host);
            let device = (info.name.clone(), info.driver.clone());
            (BackendKind::Host, vec![device; world])
        }
    };
    let devices = devices.get(..world).unwrap_or_default();
    let measured = Measured::of(kind, devices).and_then(|kept| Machine::measured(&kept));
    measured.map_or_else(|| machine(DEFAULT), Ok)
}
