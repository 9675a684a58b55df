//! A suite from its first problem to its report.

use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::plan::{GemmProvider, Problem};
use warpweave_symm_mem::{BackendKind, DType};

use super::means::means;
use super::{Suite, problem};
use crate::breakdown;
use crate::candidate::{BoundCandidate, Candidate, Implementation, InputSets, PartOfA};
use crate::clock::Clock;
use crate::error::Result;
use crate::inputs::Numbers;
use crate::limit::{Links, limit, product_alone, push_bandwidth, tflops};
use crate::progress::Progress;
use crate::provenance::{Provenance, kind_name};
use crate::report::{ProblemReport, Report, Row, SCHEMA, Status};
use crate::session::Session;
use crate::shape::Shape;
use crate::timing::{Contender, Effort, Times, Timing};
use crate::transport;
use crate::verification::{Verdict, Verifier};

/// Input sets of each kind: calls that follow each other have different inputs.
const SETS: [(Numbers, usize); 2] = [(Numbers::Integers, 3), (Numbers::Reals, 2)];

/// The candidate that is no row of a table but the limit's first part.
const PRODUCT_ALONE: &str = "product alone";

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The suite.
    pub suite: Suite,
    /// Names of implementations; all without any.
    pub implementations: Vec<String>,
    /// Problems; the suite's own without any.
    pub problems: Vec<(Shape, DType)>,
    /// Element type in place of that of the suite's own problems.
    pub dtype: Option<DType>,
    /// Single calls of each implementation; what suits the backend without.
    pub iterations: Option<usize>,
}

/// Measures and verifies. Collective; every rank gets the same report.
///
/// # Errors
/// Ranks that were started with different settings, faults, and whatever else ends a run. A wrong result or a missing
/// capability is a row of the report instead.
pub fn run<B: ExecuteBackend>(session: &Session<B>, settings: &Settings) -> Result<Report> {
    let implementations = settings.suite.implementations(&settings.implementations)?;
    let mut problems = settings.problems.clone();
    if problems.is_empty() {
        let own = settings.suite.problems(B::KIND).into_iter();
        problems = own
            .map(|(shape, dtype)| (shape, settings.dtype.unwrap_or(dtype)))
            .collect();
    }
    agree(session, settings, &implementations, &problems)?;

    let effort = Effort::of(B::KIND, settings.iterations);
    let clock = Clock::new(session, effort.capacity())?;
    let progress = Progress::new(session.rank());
    progress.at(0, problems.len(), "links");
    let links = match settings.suite {
        Suite::FusedMatmul => push_bandwidth(session, &clock)?,
        Suite::Gemm | Suite::Collectives => None,
    };
    let mut results = Vec::new();
    for (i, &(shape, dtype)) in problems.iter().enumerate() {
        let stage = Stage {
            session,
            suite: settings.suite,
            clock: &clock,
            effort,
            links: links.as_ref(),
            problem: problem(&session.backend, shape, dtype),
            shape,
            progress: &|what: &str| {
                progress.at(i, problems.len(), format!("{shape} {dtype}: {what}"))
            },
        };
        results.push(stage.measure(&implementations)?);
    }
    Ok(Report {
        schema: SCHEMA,
        suite: settings.suite.name().into(),
        provenance: Provenance::of(session)?,
        means: match settings.suite {
            Suite::FusedMatmul | Suite::Collectives => Vec::new(),
            Suite::Gemm => means(&results),
        },
        results,
        notes: notes(B::KIND),
    })
}

/// Ranks with different arguments would wait for each other in different places.
fn agree<B: ExecuteBackend>(
    session: &Session<B>,
    settings: &Settings,
    implementations: &[Implementation],
    problems: &[(Shape, DType)],
) -> Result<()> {
    let names: Vec<_> = implementations.iter().map(|i| i.name.as_str()).collect();
    let shapes: Vec<_> = problems
        .iter()
        .map(|(shape, dtype)| format!("{shape} {dtype}"))
        .collect();
    session.agree("the kind of device", kind_name(B::KIND))?;
    session.agree("the suite", settings.suite.name())?;
    session.agree("the list of implementations", &names.join(", "))?;
    session.agree("the list of shapes", &shapes.join(", "))?;
    session.agree(
        "the number of iterations",
        &format!("{:?}", settings.iterations),
    )
}

/// One problem of a run.
struct Stage<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    suite: Suite,
    clock: &'a Clock<B>,
    effort: Effort,
    links: Option<&'a Links>,
    problem: Problem,
    shape: Shape,
    progress: &'a dyn Fn(&str),
}

impl<B: ExecuteBackend> Stage<'_, B> {
    fn measure(&self, implementations: &[Implementation]) -> Result<ProblemReport> {
        let session = self.session;
        let span =
            tracing::info_span!("bench.problem", shape = %self.shape, dtype = %self.problem.dtype);
        let _entered = span.enter();
        (self.progress)("allocating");
        let mut candidates = Vec::new();
        for implementation in implementations {
            candidates.push(Candidate::bind(session, implementation, &self.problem)?);
        }
        if self.suite == Suite::FusedMatmul {
            let alone = product_alone(PRODUCT_ALONE, GemmProvider::CublasLt);
            candidates.push(Candidate::bind(session, &alone, &self.problem)?);
        }
        let mut parts = match self.suite {
            Suite::FusedMatmul => breakdown::bind(session, &candidates, &self.problem)?,
            Suite::Gemm | Suite::Collectives => Vec::new(),
        };
        (self.progress)("inputs and reference");
        let whole = candidates.iter().any(|c| c.takes == PartOfA::Whole);
        let inputs = SETS.map(|sets| InputSets::new(session, &self.problem, sets, whole));
        let [integers, reals] = inputs;
        let (integers, reals) = (integers?, reals?);
        let verifier = Verifier::new(session, &self.problem, &[&integers, &reals])?;
        for candidate in candidates.iter_mut().chain(&mut parts) {
            (self.progress)(&format!("tuning {}", candidate.name));
            self.prepare(candidate, &reals)?;
        }
        let sets = [&integers, &reals];
        let mut verdicts = self.verify(&candidates, &verifier, sets)?;
        let contender = |(candidate, in_a_row)| {
            let Candidate { bound, .. }: &Candidate<B> = candidate;
            Some(BoundCandidate {
                session,
                candidate,
                bound: bound.as_ref().ok()?,
                inputs: &reals,
                in_a_row,
            })
        };
        let rows = candidates.iter().map(|row| (row, true));
        let all = rows.chain(parts.iter().map(|part| (part, false)));
        let contenders: Vec<_> = all.filter_map(contender).collect();
        let timing = Timing {
            session,
            clock: self.clock,
            effort: self.effort,
        };
        let contenders: Vec<_> = contenders.iter().map(|c| c as &dyn Contender).collect();
        let mut times = timing.measure(&contenders, |round, rounds| {
            (self.progress)(&format!("timing, round {} of {rounds}", round + 1));
        })?;
        for (verdict, again) in
            verdicts
                .iter_mut()
                .zip(self.verify(&candidates, &verifier, sets)?)
        {
            *verdict = std::mem::take(verdict).and(again);
        }
        let times_of_parts = times.split_off(verdicts.len());
        let mut report = self.report(&candidates, times, verdicts)?;
        report.breakdown = breakdown::breakdown(&report.rows, &parts, times_of_parts);
        Ok(report)
    }

    /// Runs a candidate once with real numbers, lets it choose its algorithms, and captures it.
    fn prepare(&self, candidate: &mut Candidate<B>, inputs: &InputSets<B>) -> Result<()> {
        let Candidate {
            takes,
            bound: Ok(bound),
            name,
        } = candidate
        else {
            return Ok(());
        };
        let mut mine = || {
            inputs.load_b(self.session, bound)?;
            inputs.load_a(self.session, bound, *takes, 0)?;
            bound.run()?;
            bound.synchronize()?;
            bound.tune(&self.session.executor)?;
            bound.capture()?;
            Ok(Vec::new())
        };
        let mine = mine();
        self.session
            .settle(&format!("first call of {name}"), mine)
            .map(drop)
    }

    /// The verdicts of the candidates that run, in order.
    fn verify(
        &self,
        candidates: &[Candidate<B>],
        verifier: &Verifier<B>,
        sets: [&InputSets<B>; 2],
    ) -> Result<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        for candidate in candidates {
            let Ok(bound) = &candidate.bound else {
                continue;
            };
            (self.progress)(&format!("verifying {}", candidate.name));
            let mut verdict = Verdict::default();
            for inputs in sets {
                verdict = verdict.and(verifier.verify(self.session, candidate, bound, inputs)?);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    fn report(
        &self,
        candidates: &[Candidate<B>],
        times: Vec<Times>,
        verdicts: Vec<Verdict>,
    ) -> Result<ProblemReport> {
        let mut measured = times.into_iter().zip(verdicts);
        let mut rows = Vec::new();
        let mut alone = None;
        for candidate in candidates {
            let is_row = candidate.name != PRODUCT_ALONE;
            match &candidate.bound {
                Ok(bound) => {
                    let (times, verdict) = measured.next().unwrap_or_default();
                    if is_row {
                        rows.push(self.row(&candidate.name, bound, &times, verdict));
                    } else {
                        alone = Some((times.single(), bound.algorithms()));
                    }
                }
                Err(reason) if is_row => {
                    rows.push(Row::not_run(&candidate.name, reason.clone()));
                }
                Err(_) => {}
            }
        }
        let limit = match alone {
            Some((gemm, algorithms)) => {
                let world = self.session.world();
                Some(limit(&self.problem, world, gemm, algorithms, self.links)?)
            }
            None => None,
        };
        let (baseline, _) = self.suite.catalogue()[0];
        let baseline = rows
            .iter()
            .find(|row| row.implementation == baseline)
            .and_then(Row::ms);
        for row in &mut rows {
            let over = |time: Option<f64>| Some(time? / row.ms()?);
            (row.times_baseline, row.efficiency) =
                (over(baseline), over(limit.as_ref().map(|limit| limit.ms)));
        }
        Ok(ProblemReport {
            shape: self.shape,
            dtype: self.problem.dtype.name(),
            world: self.session.world(),
            limit,
            breakdown: None,
            rows,
        })
    }

    fn row(&self, name: &str, bound: &Bound<B>, times: &Times, verdict: Verdict) -> Row {
        let reason = (!verdict.is_right()).then(|| match &verdict.first {
            Some(first) => format!(
                "{} of {} elements; rank {}, {}",
                verdict.wrong, verdict.elements, first.rank, first.what
            ),
            None => format!(
                "relative error {:.2e}, at most {:.2e} is right",
                verdict.relative_error, verdict.tolerance
            ),
        });
        Row {
            status: if verdict.is_right() {
                Status::Ok
            } else {
                Status::Wrong
            },
            reason,
            transport: transport::names(B::KIND, bound.plan()),
            launches: Some(bound.plan().launches()),
            single_ms: times.single(),
            tflops: times
                .single()
                .map(|spread| tflops(&self.problem, spread.median)),
            back_to_back_ms: times.back_to_back(),
            graph_ms: times.graph(),
            algorithms: bound.algorithms(),
            verification: Some(verdict),
            ..Row::not_run(name, String::new())
        }
    }
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
