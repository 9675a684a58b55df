//! Runs a suite and makes its report.

use std::cell::RefCell;

use warpweave_comm::collective::Operation;
use warpweave_overlap::plan::Scaling;
use warpweave_report::peers::Peers;
use warpweave_report::{Bytes, COLLECTIVES, PLANS, Report, means, over_bound};
use warpweave_symm_mem::{BackendKind, DType, require_same};

use super::stage::Run;
use super::{Case, GEMM, Sizes, Suite, problem};
use crate::clock::Clock;
use crate::collectives::{self, DEFAULT_OPERATIONS, NcclBackend, decode};
use crate::error::Result;
use crate::limit::push_bandwidth;
use crate::plans::Schedules;
use crate::progress::Progress;
use crate::provenance::{kind_name, provenance};
use crate::session::Session;
use crate::timing::Effort;

/// What is to be measured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Settings {
    /// The suite.
    #[arg(long, default_value = "fused-matmul", value_parser = super::named)]
    pub suite: &'static Suite,
    /// Element type; by default bf16 for shapes that are given, the suite's choice for its own.
    #[arg(long, value_name = "bf16|f16|f32|e4m3")]
    pub dtype: Option<DType>,
    /// With e4m3: what has a scale; blocks in the suite gemm alone [default: row].
    #[arg(long, value_name = "tensor|row|block", value_parser = scaling)]
    pub scales: Option<Scaling>,
    /// Suites collectives and decode: what a rank brings in bytes, by comma; the suite's own without.
    #[arg(long, value_name = "4K,64K,1M", value_delimiter = ',')]
    pub sizes: Vec<Bytes>,
    /// Suite collectives: operations, by comma; all without.
    #[arg(long = "op", value_name = "A,B", value_delimiter = ',', value_parser = collectives::operation)]
    pub operations: Vec<Operation>,
    /// Implementations, by comma, with options as pushChunks:chunks=4; the suite's table without.
    #[arg(long = "impl", value_name = "A,B", value_delimiter = ',')]
    pub implementations: Vec<String>,
    /// Single calls of each implementation.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: Option<u32>,
    /// Problems of plans; the suite's own without any.
    #[arg(skip)]
    pub problems: Vec<Sizes>,
    /// Figures of another program.
    #[arg(skip)]
    pub peers: Option<Peers>,
}

/// What has a scale among operands of this type, if `scales` were asked for.
pub fn scaling_of(dtype: DType, scales: Option<Scaling>) -> Scaling {
    match dtype {
        DType::E4m3 => scales.unwrap_or(Scaling::Row),
        _ => Scaling::None,
    }
}

/// Reads what has a scale.
pub fn scaling(name: &str) -> Result<Scaling, String> {
    let all = [Scaling::Tensor, Scaling::Row, Scaling::Block];
    let named = all.into_iter().find(|scaling| scaling.name() == name);
    named.ok_or_else(|| format!("`{name}` is none of tensor, row and block"))
}

impl Settings {
    /// Everything that `suite` measures by default.
    pub fn of(suite: &'static Suite) -> Self {
        Self {
            suite,
            ..Self::default()
        }
    }

    /// The problems that are given, or the suite's own among `world` ranks.
    pub fn problems_on(&self, kind: BackendKind, world: usize) -> Vec<Sizes> {
        if !self.problems.is_empty() {
            return self.problems.clone();
        }
        let own = (self.suite.problems)(kind, world).into_iter();
        own.map(|(shape, dtype)| (shape, self.dtype.unwrap_or(dtype)))
            .collect()
    }

    /// The sizes of messages that are given, or the backend's default, each once and in order.
    pub fn sizes_on(&self, kind: BackendKind) -> Vec<Bytes> {
        let mut sizes = match self.sizes.is_empty() {
            true if self.suite.is_of_decode() => decode::sizes(kind),
            true => collectives::sizes(kind),
            false => self.sizes.clone(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// What has a scale among operands of this type.
    pub fn scaling(&self, dtype: DType) -> Scaling {
        scaling_of(dtype, self.scales)
    }

    /// The element type of messages, and of problems that are given.
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
    let mut cases = suite.cases(&settings.implementations)?;
    if session.nodes.count() > 1 {
        let nodes = session.nodes.count();
        cases.iter_mut().for_each(|case| case.over_nodes(nodes));
    }
    let has_own_problems = settings.problems.is_empty();
    let mut settings = settings.clone();
    settings.problems = settings.problems_on(kind, session.world());
    settings.sizes = settings.sizes_on(kind);
    if settings.operations.is_empty() {
        settings.operations = DEFAULT_OPERATIONS.into();
    }
    require_same_settings(session, &settings, &cases)?;

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
        schedules: RefCell::new(Schedules::new(&settings.problems)),
    };
    run.progress.at(0, 1, "links");
    if is_of_collectives || cases.iter().any(|case| case.operation.is_some()) {
        run.links = push_bandwidth(&run.clock)?;
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
        provenance: provenance(session)?,
        clock_ms: run.clock.cost()?,
        links: run.links.clone().filter(|_| is_of_collectives),
        peers: None,
        results: Vec::new(),
        means: Vec::new(),
        notes: Vec::new(),
    };
    if kind == BackendKind::Host {
        let note = "Host backend: processes and memory of one machine. The results are verified; \
                    the times say nothing about GPUs, NVLink or NCCL.";
        report.notes.push(note.into());
    }
    match is_of_collectives {
        true => collectives::measure(&run, &mut report, &mut each)?,
        false => {
            let has = |case: &Case, (shape, _): Sizes| match case.operation {
                Some(operation) if has_own_problems => suite.has(operation, shape),
                _ => true,
            };
            let all = settings.problems.iter();
            let all = all.flat_map(|&sizes| cases.iter().map(move |case| (case, sizes)));
            let all: Vec<_> = all.filter(|&(case, sizes)| has(case, sizes)).collect();
            measure_plans(&run, &all, &mut report, &mut each)?;
        }
    }
    Ok(report)
}

/// Adds the results of all problems to `report`. Collective.
fn measure_plans<B: NcclBackend>(
    run: &Run<'_, B>,
    all: &[(&Case, Sizes)],
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    report
        .notes
        .extend(run.settings.peers.iter().map(|Peers { by, .. }| {
            format!(
                "Rows torch-*: {by}, in a run of its own; what they compute is not verified here."
            )
        }));
    for (i, &(case, sizes)) in all.iter().enumerate() {
        let outcome = problem::measure(run, case, sizes, (i, all.len()))?;
        report.results.push(outcome);
        each(report)?;
    }
    report.notes.extend(over_bound(&report.results));
    if run.settings.suite.name == GEMM.name {
        report.means = means(&report.results);
    }
    Ok(())
}

/// Ranks with different arguments would wait for each other in different places.
fn require_same_settings<B: NcclBackend>(
    session: &Session<B>,
    settings: &Settings,
    cases: &[Case],
) -> Result<()> {
    let cases = cases.iter().flat_map(|case| &case.implementations);
    let names: Vec<_> = match settings.suite.is_of_collectives() {
        true => settings.implementations.clone(),
        false => cases.map(|one| one.name.clone()).collect(),
    };
    let shapes = settings.problems.iter();
    let shapes: Vec<_> = shapes.map(|(s, d)| format!("{s} {d}")).collect();
    let operations: Vec<_> = settings.operations.iter().map(|o| o.name()).collect();
    let sizes: Vec<_> = settings.sizes.iter().map(Bytes::to_string).collect();
    let (dtype, iterations) = (settings.dtype, settings.iterations);
    for (what, value) in [
        ("the kind of device", kind_name(B::KIND).to_owned()),
        ("the suite", settings.suite.name.to_owned()),
        ("the list of implementations", names.join(", ")),
        ("the list of shapes", shapes.join(", ")),
        ("the list of operations", operations.join(", ")),
        ("the list of sizes", sizes.join(", ")),
        ("the element type", format!("{dtype:?}")),
        ("the scales", format!("{:?}", settings.scales)),
        ("the number of iterations", format!("{iterations:?}")),
    ] {
        require_same(session.exchange.as_ref(), what, &value)?;
    }
    Ok(())
}
