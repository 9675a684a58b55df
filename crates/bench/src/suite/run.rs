//! A suite from its first problem to its report.

use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::{BackendKind, DType};

use super::means::means;
use super::stage::Stage;
use super::{Case, Sizes, Suite, gemm, problem};
use crate::clock::Clock;
use crate::error::Result;
use crate::limit::push_bandwidth;
use crate::peers::Peers;
use crate::progress::Progress;
use crate::provenance::{Provenance, kind_name};
use crate::report::{Report, SCHEMA};
use crate::session::Session;
use crate::timing::Effort;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The suite.
    pub suite: &'static Suite,
    /// Names of implementations; all of the suite's table without any.
    pub implementations: Vec<String>,
    /// Problems; the suite's own without any.
    pub problems: Vec<Sizes>,
    /// Element type in place of that of the suite's own problems.
    pub dtype: Option<DType>,
    /// Single calls of each implementation; what suits the backend without.
    pub iterations: Option<usize>,
    /// Figures of another program.
    pub peers: Option<Peers>,
}

impl Settings {
    /// What is measured: the problems that are given, or the suite's own among `world` ranks.
    pub fn problems_on(&self, kind: BackendKind, world: usize) -> Vec<Sizes> {
        if !self.problems.is_empty() {
            return self.problems.clone();
        }
        let own = self.suite.problems(kind, world).into_iter();
        own.map(|(shape, dtype)| (shape, self.dtype.unwrap_or(dtype)))
            .collect()
    }
}

/// Measures and verifies. Collective; every rank gets the same report.
///
/// # Errors
/// Ranks that were started with different settings, faults, and whatever else ends a run. A wrong result or a missing
/// capability is a row of the report instead.
pub fn run<B: ExecuteBackend>(session: &Session<B>, settings: &Settings) -> Result<Report> {
    run_with(session, settings, |_| Ok(()))
}

/// As [`run`]; `each` gets the report as far as it is, after each problem, so that what ends a run does not take all with it.
///
/// # Errors
/// As [`run`], and what `each` reports.
pub fn run_with<B: ExecuteBackend>(
    session: &Session<B>,
    settings: &Settings,
    mut each: impl FnMut(&Report) -> Result<()>,
) -> Result<Report> {
    let suite = settings.suite;
    let cases = suite.cases(&settings.implementations)?;
    let problems = settings.problems_on(B::KIND, session.world());
    agree(session, settings, &cases, &problems)?;

    let effort = Effort::of(B::KIND, settings.iterations);
    let clock = Clock::new(session, effort.capacity())?;
    let progress = Progress::new(session.rank());
    progress.at(0, 1, "links");
    let links = match cases.iter().any(|case| case.operation.is_some()) {
        true => push_bandwidth(session, &clock)?,
        false => None,
    };
    let mut report = Report {
        schema: SCHEMA.into(),
        suite: suite.name.into(),
        reproduces: suite.reproduces.into(),
        provenance: Provenance::of(session)?,
        clock_ms: clock.cost(session)?,
        results: Vec::new(),
        means: Vec::new(),
        notes: notes(B::KIND, settings.peers.as_ref()),
    };
    for (i, &sizes) in problems.iter().enumerate() {
        for (j, case) in cases.iter().enumerate() {
            let (shape, dtype) = sizes;
            let _span = tracing::info_span!("bench.problem", %shape, %dtype).entered();
            let stage = Stage {
                session,
                suite,
                case,
                clock: &clock,
                effort,
                links: links.as_ref(),
                problem: problem(&session.backend, sizes),
                sizes,
                peers: settings.peers.as_ref(),
                progress: &|what: &str| {
                    let done = i * cases.len() + j;
                    let label = format!("{shape} {dtype}: {what}");
                    progress.at(done, problems.len() * cases.len(), label);
                },
            };
            report.results.push(stage.measure()?);
            each(&report)?;
        }
    }
    if suite.name == gemm::SUITE.name {
        report.means = means(&report.results);
    }
    Ok(report)
}

/// Ranks with different arguments would wait for each other in different places.
fn agree<B: ExecuteBackend>(
    session: &Session<B>,
    settings: &Settings,
    cases: &[Case],
    problems: &[Sizes],
) -> Result<()> {
    let names: Vec<_> = cases
        .iter()
        .flat_map(|case| case.implementations.iter().map(|i| i.name.as_str()))
        .collect();
    let shapes: Vec<_> = problems
        .iter()
        .map(|(shape, dtype)| format!("{shape} {dtype}"))
        .collect();
    session.agree("the kind of device", kind_name(B::KIND))?;
    session.agree("the suite", settings.suite.name)?;
    session.agree("the list of implementations", &names.join(", "))?;
    session.agree("the list of shapes", &shapes.join(", "))?;
    session.agree(
        "the number of iterations",
        &format!("{:?}", settings.iterations),
    )
}

/// Findings that no table tells.
fn notes(kind: BackendKind, peers: Option<&Peers>) -> Vec<String> {
    let host = match kind {
        BackendKind::Cuda => None,
        BackendKind::Host => Some(
            "Host backend: processes and memory of one machine. The results are verified; the times say nothing about \
             GPUs, NVLink or NCCL."
                .to_owned(),
        ),
    };
    let peers = peers.map(|peers| {
        format!(
            "Rows torch-*: {}, in a run of its own; what they compute is not verified here.",
            peers.by
        )
    });
    host.into_iter().chain(peers).collect()
}
