//! `warpweave measure`, and the figures of machines that are kept from one job to the next: `bench` and
//! `measure` write them, `plan` reads them.

use std::io::Write;
use std::path::Path;

use warpweave_comm::collective::Costs;
use warpweave_comm::measured::Figures;
use warpweave_comm::{Job, Measured};
use warpweave_overlap::Machine;
use warpweave_report::Provenance;
use warpweave_report::file::{self, check_place};
use warpweave_symm_mem::{Backend, BackendKind, Cuda, Host};

use crate::cli::MeasureArgs;
use crate::collectives::NcclBackend;
use crate::error::Result;
use crate::job::{self, Part};
use crate::measure;
use crate::provenance::provenance;
use crate::session::Session;

/// Takes this rank's part in measuring the machine.
pub(super) fn measure(args: &MeasureArgs) -> Result<bool> {
    if let Some(path) = &args.out {
        check_place("--out", path)?;
    }
    job::take_part(&Job::from_env()?, args.device, None, args)
}

impl Part for &MeasureArgs {
    fn run<B: NcclBackend>(self, session: &Session<B>) -> Result<bool> {
        let kept = Measured::of_ranks(&session.backend, session.exchange.as_ref())?;
        let (machine, costs) = measure::run(session)?;
        let provenance = provenance(session)?;
        if session.rank() > 0 {
            return Ok(true);
        }
        match &self.out {
            Some(path) => file::write(path, &machine)?,
            None => std::io::stdout().write_all(machine.as_bytes())?,
        }
        if let Some(kept) = kept.filter(|_| describes_a_machine(&provenance)) {
            log(&kept.write(Figures::Machine, &machine)?);
            keep_costs(&kept, costs)?;
        }
        Ok(true)
    }
}

/// Whether figures are kept by the devices alone: not those of ranks that share some, or of several nodes.
pub(super) fn describes_a_machine(run: &Provenance) -> bool {
    !run.is_shared() && run.nodes == 1
}

/// Keeps `costs`, by which collectives are selected from then on. Operations that they lack keep their
/// figures.
pub(super) fn keep_costs(measured: &Measured, costs: Costs) -> Result<()> {
    if costs.is_empty() {
        return Ok(());
    }
    let mut kept: Costs = measured
        .read(Figures::Costs, str::parse)
        .unwrap_or_default();
    kept.replace(costs);
    log(&measured.write(Figures::Costs, &kept.to_string())?);
    Ok(())
}

fn log(path: &Path) {
    tracing::info!("figures of this machine are kept in {}", path.display());
}

/// A machine of the crate by its name, or else of a file.
pub(super) fn machine(name: &str) -> Result<Machine> {
    let path = Path::new(name);
    if Machine::names().contains(&name) || !path.exists() {
        return Ok(Machine::named(name)?);
    }
    Ok(Machine::from_toml(&file::read(path)?)?)
}

/// The machine of this name or file; without one, this machine with `world` ranks where it was measured.
pub(super) fn machine_or_measured(name: Option<&str>, world: usize) -> Result<Machine> {
    if let Some(name) = name {
        return machine(name);
    }
    let (kind, devices) = match Cuda::installed() {
        Ok(devices) if !devices.is_empty() => (BackendKind::Cuda, devices),
        _ => {
            let host = Host::new();
            let info = host.device();
            let device = (info.name.clone(), info.driver.clone());
            (BackendKind::Host, vec![device; world])
        }
    };
    let devices = devices.get(..world).unwrap_or_default();
    let measured = Measured::of(kind, devices).and_then(|kept| Machine::measured(&kept));
    measured.map_or_else(|| machine(measure::DEFAULT), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_shared_devices_and_of_several_nodes_are_not_kept() {
        for (distinct, nodes, expected) in [("null", 1, true), ("1", 1, false), ("null", 2, false)]
        {
            let text = format!(
                r#"{{"backend": "cuda", "devices": [{{"name": "GPU", "count": 2, "distinct": {distinct}}}],
                    "ranks": 2, "nodes": {nodes}, "host": {{"system": "", "cores": 1}},
                    "version": "", "commit": ""}}"#
            );
            let run = serde_json::from_str(&text).unwrap();
            assert_eq!(describes_a_machine(&run), expected, "{run}");
        }
    }
}
