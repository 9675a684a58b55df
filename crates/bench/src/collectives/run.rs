//! The sizes of a run, one after the other.

use warpweave_comm::Collectives;
use warpweave_comm::collective::CollectiveOptions;

use super::candidate::first_reason;
use super::method::{Method, wants};
use super::nccl::{Library, NcclBackend};
use super::operation::place;
use super::stage::Stage;
use crate::clock::Clock;
use crate::error::Result;
use crate::limit::Links;
use crate::progress::Progress;
use crate::report::Report;
use crate::session::Session;
use crate::suite::Settings;
use crate::timing::Effort;

/// What a run is made with.
pub(crate) struct Setup<'a, B: NcclBackend> {
    pub session: &'a Session<B>,
    pub settings: &'a Settings,
    pub clock: &'a Clock<B>,
    pub effort: Effort,
    pub links: Option<&'a Links>,
    pub progress: &'a Progress,
}

/// Adds the results of all sizes to `report`, by operation. Collective.
pub(crate) fn measure<B: NcclBackend>(
    setup: &Setup<'_, B>,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let Setup {
        session, settings, ..
    } = setup;
    let largest = settings.sizes.last().map_or(0, |size| size.0);
    let options = CollectiveOptions {
        // A rank's share of the largest message, rounded up, for each rank.
        staging_bytes: largest + 4096,
        ..CollectiveOptions::default()
    };
    let ours = Collectives::new(&session.backend, &session.exchange, "bench", options)?;
    setup.progress.at(0, 1, "NCCL");
    let plain = library(setup, Method::Nccl)?;
    let windows = library(setup, Method::NcclWindow)?;
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let stage = Stage {
            setup,
            ours: &ours,
            plain: &plain,
            windows: &windows,
            size,
            progress: &|what: &str| {
                let label = format!("{size}: {what}");
                setup.progress.at(i, settings.sizes.len(), label);
            },
        };
        results.extend(stage.measure()?);
        results.sort_by_key(|(operation, size, _)| (place(*operation), *size));
        let outcomes = results.iter().map(|(.., outcome)| outcome.clone());
        report.results = outcomes.collect();
        each(report)?;
    }
    Ok(ours.close(&session.stream, session.exchange.as_ref())?)
}

/// NCCL's communicator for a row, if it is wanted. Collective.
fn library<B: NcclBackend>(setup: &Setup<'_, B>, method: Method) -> Result<Library<B::Comm>> {
    let session = setup.session;
    if !wants(&setup.settings.implementations, method.name()) {
        return Ok(Library::default());
    }
    let (mine, comm) = match session.backend.nccl(&session.exchange) {
        Ok(comm) => (Ok(Vec::new()), Some(comm)),
        Err(error) if error.is_unavailable() => (Ok(error.to_string().into_bytes()), None),
        Err(error) => (Err(error), None),
    };
    let refusal = first_reason(&session.agree(&format!("start of {}", method.name()), mine)?);
    Ok(Library {
        comm: comm.filter(|_| refusal.is_none()),
        refusal,
    })
}
