//! A suite from its first problem to its report.

use warpweave_comm::collective::Operation;
use warpweave_symm_mem::{BackendKind, DType};

use super::layers;
use super::means::means;
use super::stage::Run;
use super::{Case, GEMM, Sizes, Suite, problem};
use crate::clock::Clock;
use crate::collectives::{self, DEFAULT_OPERATIONS, NcclBackend};
use crate::error::Result;
use crate::limit::push_bandwidth;
use crate::peers::Peers;
use crate::progress::Progress;
use crate::provenance::{Provenance, kind_name};
use crate::report::{COLLECTIVES, PLANS, Report};
use crate::session::Session;
use crate::size::Bytes;
use crate::timing::Effort;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The suite.
    pub suite: &'static Suite,
    /// Names of implementations; all of the suite's table without any.
    pub implementations: Vec<String>,
    /// Plans: problems; the suite's own without any.
    pub problems: Vec<Sizes>,
    /// Collectives: operations; [`DEFAULT_OPERATIONS`] without any.
    pub operations: Vec<Operation>,
    /// Collectives: sizes; the backend's default without any.
    pub sizes: Vec<Bytes>,
    /// Element type in place of that of the suite's own problems; bf16 for collectives without.
    pub dtype: Option<DType>,
    /// Single calls of each implementation; the backend's default without.
    pub iterations: Option<usize>,
    /// Figures of another program.
    pub peers: Option<Peers>,
}

impl Settings {
    /// Everything that `suite` measures by default.
    pub fn of(suite: &'static Suite) -> Self {
        Self {
            suite,
            implementations: Vec::new(),
            problems: Vec::new(),
            operations: Vec::new(),
            sizes: Vec::new(),
            dtype: None,
            iterations: None,
            peers: None,
        }
    }

    /// The problems that are given, or the suite's own among `world` ranks.
    pub fn problems_on(&self, kind: BackendKind, world: usize) -> Vec<Sizes> {
        if !self.problems.is_empty() {
            return self.problems.clone();
        }
        let own = self.suite.problems(kind, world).into_iter();
        own.map(|(shape, dtype)| (shape, self.dtype.unwrap_or(dtype)))
            .collect()
    }

    /// The sizes of messages that are given, or the backend's default, each once and in order.
    pub fn sizes_on(&self, kind: BackendKind) -> Vec<Bytes> {
        let mut sizes = match self.sizes.is_empty() {
            true if self.suite.is_of_decode() => collectives::decode::sizes(kind),
            true => Bytes::defaults(kind),
            false => self.sizes.clone(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The element type of messages.
    pub fn message_dtype(&self) -> DType {
        self.dtype.unwrap_or(DType::Bf16)
    }
}

/// Measures and verifies. Collective; every rank gets the same report. `each` gets it as far as it is after
/// each problem, so that what ends a run does not take all with it.
///
/// # Errors
/// Ranks that were started with different settings, faults, and whatever else ends a run; what `each`
/// reports. A wrong result or a missing capability is a row of the report instead.
pub fn run<B: NcclBackend>(
    session: &Session<B>,
    settings: &Settings,
    mut each: impl FnMut(&Report) -> Result<()>,
) -> Result<Report> {
    let (suite, kind) = (settings.suite, B::KIND);
    let is_of_collectives = suite.is_of_collectives();
    let cases = match is_of_collectives {
        true => Vec::new(),
        false => suite.cases(&settings.implementations)?,
    };
    let has_own_problems = settings.problems.is_empty();
    let mut settings = settings.clone();
    if is_of_collectives {
        settings.sizes = settings.sizes_on(kind);
        if settings.operations.is_empty() {
            settings.operations = DEFAULT_OPERATIONS.into();
        }
    } else {
        settings.problems = settings.problems_on(kind, session.world());
    }
    require_same(session, &settings, &cases)?;

    let effort = match is_of_collectives {
        true => Effort::of_collectives(kind, settings.iterations),
        false => Effort::of(kind, settings.iterations),
    };
    let mut run = Run {
        session,
        settings: &settings,
        clock: Clock::new(session, effort.capacity())?,
        effort,
        links: None,
        progress: Progress::new(session.rank()),
        schedules: Default::default(),
    };
    run.progress.at(0, 1, "links");
    if is_of_collectives || cases.iter().any(|case| case.operation.is_some()) {
        run.links = push_bandwidth(session, &run.clock)?;
    }
    let schema = if is_of_collectives {
        COLLECTIVES
    } else {
        PLANS
    };
    let mut report = Report {
        schema: schema.into(),
        suite: suite.name.into(),
        reproduces: suite.reproduces.into(),
        provenance: Provenance::of(session)?,
        clock_ms: run.clock.cost(session)?,
        links: run.links.clone().filter(|_| is_of_collectives),
        peers: None,
        results: Vec::new(),
        means: Vec::new(),
        notes: host_note(kind).into_iter().collect(),
    };
    let peers = settings.peers.as_ref().map(|peers| &peers.by);
    if is_of_collectives {
        report.peers = peers.cloned();
        match suite.is_of_decode() {
            true => collectives::decode::measure(&run, &mut report, &mut each)?,
            false => collectives::measure(&run, &mut report, &mut each)?,
        }
        return Ok(report);
    }
    report.notes.extend(peers.map(|by| {
        format!("Rows torch-*: {by}, in a run of its own; what they compute is not verified here.")
    }));
    let has = |case: &Case, (shape, _): Sizes| match case.operation {
        Some(operation) if has_own_problems => suite.has(operation, shape),
        _ => true,
    };
    let pairs = settings.problems.iter();
    let pairs = pairs.flat_map(|&sizes| cases.iter().map(move |case| (case, sizes)));
    let pairs: Vec<_> = pairs.filter(|&(case, sizes)| has(case, sizes)).collect();
    for &(case, sizes) in &pairs {
        let place = (report.results.len(), pairs.len());
        let outcome = problem::measure(&run, case, sizes, place)?;
        report.results.push(outcome);
        each(&report)?;
    }
    report.notes.extend(layers::notes(&report.results));
    if suite.name == GEMM.name {
        report.means = means(&report.results);
    }
    Ok(report)
}

/// Ranks with different arguments would wait for each other in different places.
fn require_same<B: NcclBackend>(
    session: &Session<B>,
    settings: &Settings,
    cases: &[Case],
) -> Result<()> {
    let names: Vec<_> = match settings.suite.is_of_collectives() {
        true => settings.implementations.clone(),
        false => cases
            .iter()
            .flat_map(|case| case.implementations.iter().map(|i| i.name.clone()))
            .collect(),
    };
    let list = |items: &mut dyn Iterator<Item = String>| items.collect::<Vec<_>>().join(", ");
    let mut shapes = settings
        .problems
        .iter()
        .map(|(shape, dtype)| format!("{shape} {dtype}"));
    let mut operations = settings.operations.iter().map(|o| o.name().to_owned());
    let mut sizes = settings.sizes.iter().map(Bytes::to_string);
    for (what, value) in [
        ("the kind of device", kind_name(B::KIND).to_owned()),
        ("the suite", settings.suite.name.to_owned()),
        ("the list of implementations", names.join(", ")),
        ("the list of shapes", list(&mut shapes)),
        ("the list of operations", list(&mut operations)),
        ("the list of sizes", list(&mut sizes)),
        ("the element type", format!("{:?}", settings.dtype)),
        (
            "the number of iterations",
            format!("{:?}", settings.iterations),
        ),
    ] {
        session.require_same(what, &value)?;
    }
    Ok(())
}

/// A finding that no table shows.
fn host_note(kind: BackendKind) -> Option<String> {
    (kind == BackendKind::Host).then(|| {
        "Host backend: processes and memory of one machine. The results are verified; the times say nothing about \
         GPUs, NVLink or NCCL."
            .into()
    })
}
