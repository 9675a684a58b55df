//! The suite from its first size to its report.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{CollectiveOptions, Operation};
use warpweave_symm_mem::{BackendKind, DType};

use super::candidate::told;
use super::nccl::{Library, NcclBackend};
use super::operation::{DEFAULT_OPERATIONS, place};
use super::report::{LinkSpeed, Report, SCHEMA};
use super::size::Bytes;
use super::stage::Stage;
use super::way::{Way, wants};
use crate::clock::Clock;
use crate::error::Result;
use crate::limit::push_bandwidth;
use crate::peers::Peers;
use crate::progress::Progress;
use crate::provenance::{Provenance, kind_name};
use crate::session::Session;
use crate::timing::Effort;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names of rows; all without any.
    pub implementations: Vec<String>,
    /// Operations; [`DEFAULT_OPERATIONS`] without any.
    pub operations: Vec<Operation>,
    /// Sizes; what suits the backend without any.
    pub sizes: Vec<Bytes>,
    /// Element type.
    pub dtype: DType,
    /// Single calls of each row; what suits the backend without.
    pub iterations: Option<usize>,
    /// Figures of another program.
    pub peers: Option<Peers>,
}

impl Settings {
    /// What is measured: each of the sizes that are given, or of those that suit the backend, once and in order.
    pub fn sizes_on(&self, kind: BackendKind) -> Vec<Bytes> {
        let mut sizes = match self.sizes.is_empty() {
            true => Bytes::defaults(kind),
            false => self.sizes.clone(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Measures and verifies. Collective; every rank gets the same report.
///
/// # Errors
/// Ranks that were started with different settings, faults, and whatever else ends a run. A wrong result or a missing
/// capability is a row of the report instead.
pub fn run<B: NcclBackend>(session: &Session<B>, settings: &Settings) -> Result<Report> {
    let mut settings = settings.clone();
    if settings.operations.is_empty() {
        settings.operations = DEFAULT_OPERATIONS.into();
    }
    settings.sizes = settings.sizes_on(B::KIND);
    agree(session, &settings)?;

    let effort = Effort::of_collectives(B::KIND, settings.iterations);
    let clock = Clock::new(session, effort.capacity())?;
    let progress = Progress::new(session.rank());
    progress.at(0, 1, "links");
    let links = push_bandwidth(session, &clock)?;
    let largest = settings.sizes.last().map_or(0, |size| size.0);
    let options = CollectiveOptions {
        // A rank's share of the largest message, rounded up, for each rank.
        staging_bytes: largest + 4096,
        ..CollectiveOptions::default()
    };
    let ours = Collectives::new(&session.backend, &session.exchange, "bench", options)?;
    progress.at(0, 1, "NCCL");
    let plain = library(session, &settings, Way::Nccl)?;
    let windows = library(session, &settings, Way::NcclWindow)?;
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let _span = tracing::info_span!("bench.size", %size).entered();
        let stage = Stage {
            session,
            settings: &settings,
            clock: &clock,
            effort,
            links: links.as_ref(),
            ours: &ours,
            plain: &plain,
            windows: &windows,
            size,
            progress: &|what: &str| progress.at(i, settings.sizes.len(), format!("{size}: {what}")),
        };
        results.extend(stage.measure()?);
    }
    results.sort_by_key(|(operation, outcome)| (place(*operation), outcome.size));
    ours.close(&session.stream, session.exchange.as_ref())?;
    Ok(Report {
        schema: SCHEMA.into(),
        suite: "collectives".into(),
        provenance: Provenance::of(session)?,
        links: links.map(|links| LinkSpeed {
            bandwidth_gb_s: links.bandwidth_gb_s,
            transport: links.transport,
        }),
        peers: settings.peers.as_ref().map(|peers| peers.by.clone()),
        results: results.into_iter().map(|(_, outcome)| outcome).collect(),
        notes: notes(B::KIND),
    })
}

/// Ranks with different arguments would wait for each other in different places.
fn agree<B: NcclBackend>(session: &Session<B>, settings: &Settings) -> Result<()> {
    let list = |names: Vec<String>| names.join(", ");
    let operations = settings.operations.iter().map(|o| o.name().to_owned());
    let sizes = settings.sizes.iter().map(Bytes::to_string);
    session.agree("the kind of device", kind_name(B::KIND))?;
    session.agree("the suite", "collectives")?;
    session.agree(
        "the list of implementations",
        &list(settings.implementations.clone()),
    )?;
    session.agree("the list of operations", &list(operations.collect()))?;
    session.agree("the list of sizes", &list(sizes.collect()))?;
    session.agree("the element type", settings.dtype.name())?;
    let iterations = format!("{:?}", settings.iterations);
    session.agree("the number of iterations", &iterations)
}

/// A communicator of NCCL's for a row, if it is wanted. Collective.
fn library<B: NcclBackend>(
    session: &Session<B>,
    settings: &Settings,
    way: Way,
) -> Result<Library<B::Comm>> {
    if !wants(&settings.implementations, way.name()) {
        return Ok(Library::default());
    }
    let (mine, comm) = match session.backend.nccl(&session.exchange) {
        Ok(comm) => (Ok(Vec::new()), Some(comm)),
        Err(error) if error.is_unavailable() => (Ok(error.to_string().into_bytes()), None),
        Err(error) => (Err(error), None),
    };
    let refusal = told(&session.settle(&format!("start of {}", way.name()), mine)?);
    Ok(Library {
        comm: comm.filter(|_| refusal.is_none()),
        refusal,
    })
}

/// Findings that no table tells.
fn notes(kind: BackendKind) -> Vec<String> {
    match kind {
        BackendKind::Cuda => Vec::new(),
        BackendKind::Host => vec![
            "Host backend: processes and memory of one machine. The results are verified; the times say nothing about \
             GPUs, NVLink or NCCL."
                .into(),
        ],
    }
}
