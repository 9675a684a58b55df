//! One problem of a run, for the implementations of one operation.

use warpweave_overlap::Operation;
use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::{Problem, Provider, Role};

use super::groups::{budget, divide};
use super::{Case, Sizes, Suite};
use crate::breakdown;
use crate::candidate::{BoundCandidate, Candidate, Implementation};
use crate::clock::Clock;
use crate::error::Result;
use crate::inputs::{InputSets, Matrices, Numbers, with_role};
use crate::limit::{Links, gemm_alone, gemm_of, limit, tflops};
use crate::peers::Peers;
use crate::report::{Breakdown, Group, Kind, Limit, Operands, Outcome, Row, Status};
use crate::session::Session;
use crate::timing::{Call, Contender, Effort, Times, Timing};
use crate::transport;
use crate::verification::{Verdict, Verifier};

/// Input sets of each kind: calls that follow each other have different inputs.
const SETS: [(Numbers, usize); 2] = [(Numbers::Integers, 3), (Numbers::Reals, 2)];

/// Those that are verified where it takes long; two kinds, and still inputs that change.
const FEW_SETS: [(Numbers, usize); 2] = [(Numbers::Integers, 2), (Numbers::Reals, 1)];

/// Elements of C that take the host tens of milliseconds to download and compare.
const LARGE: usize = 1 << 24;

/// How an implementation is called for verification before the timing, and after it.
const WAYS: [&[Call]; 2] = [&[Call::Run, Call::Replay]; 2];

/// The same where it takes long: each form once, and still before and after.
const FEW_WAYS: [&[Call]; 2] = [&[Call::Run], &[Call::Replay]];

/// One problem of a run.
pub(super) struct Stage<'a, B: ExecuteBackend> {
    pub session: &'a Session<B>,
    pub suite: &'a Suite,
    pub case: &'a Case,
    pub clock: &'a Clock<B>,
    pub effort: Effort,
    pub links: Option<&'a Links>,
    pub problem: Problem,
    pub sizes: Sizes,
    pub peers: Option<&'a Peers>,
    pub progress: &'a dyn Fn(&str),
}

/// What candidates are called and verified with.
struct Bench<B: ExecuteBackend> {
    /// Integers and reals.
    inputs: [InputSets<B>; 2],
    verifier: Verifier<B>,
    ways: [&'static [Call]; 2],
}

/// The candidates that are bound at a time. The first are in every group.
struct Bind<B: ExecuteBackend> {
    candidates: Vec<Candidate<B>>,
    /// Place of the baseline, if it was asked for.
    baseline: Option<usize>,
    /// Place of the GEMM alone, which is no row.
    alone: Option<usize>,
    /// How many are in every group.
    kept: usize,
}

/// What was measured of a group.
struct Measured {
    rows: Vec<Row>,
    group: Group,
    limit: Option<Limit>,
    breakdown: Option<Breakdown>,
}

impl<B: ExecuteBackend> Stage<'_, B> {
    pub fn measure(&self) -> Result<Outcome> {
        let (session, problem) = (self.session, &self.problem);
        let (shape, dtype) = self.sizes;
        let span = tracing::info_span!("bench.problem", shape = %shape, dtype = %dtype);
        let _entered = span.enter();
        (self.progress)("reference");
        let matrices = Matrices::of(self.case.operation, session.world(), problem);
        let large = problem.m * problem.n > LARGE;
        let (verified, ways) = match large || matrices.is_large() {
            true => (FEW_SETS, if large { FEW_WAYS } else { WAYS }),
            false => (SETS, WAYS),
        };
        let mut bench = Bench {
            inputs: SETS.map(|(numbers, sets)| InputSets::new(matrices, numbers, sets)),
            verifier: Verifier::new(session, matrices, &verified)?,
            ways,
        };
        let (mut bound, others) = self.bind_kept(&self.case.implementations)?;
        let bytes: Vec<_> = others
            .iter()
            .map(|other| self.bytes_of(other))
            .collect::<Result<_>>()?;
        let operation = self.case.operation.map(|o| o.name().into());
        let on = Operands::Matrices { shape };
        let mut report = Outcome::new(operation, on, dtype.name().into(), session.world());
        report.published = self.suite.published(self.sizes);
        for group in divide(&bytes, budget(B::KIND)) {
            (self.progress)("allocating");
            for implementation in &others[group] {
                let candidate = Candidate::bind(session, implementation, problem)?;
                bound.candidates.push(candidate);
            }
            let measured = self.group(&mut bench, &mut bound, report.groups.len())?;
            report.rows.extend(measured.rows);
            report.groups.push(measured.group);
            report.limit = report.limit.or(measured.limit);
            report.breakdown = report.breakdown.or(measured.breakdown);
            bound.candidates.truncate(bound.kept);
        }
        self.compare_with_others(&mut report);
        Ok(report)
    }

    /// Binds what is in every group: the baseline, and the GEMM alone where there is a limit. Returns the
    /// others too.
    fn bind_kept<'i>(&self, all: &'i [Implementation]) -> Result<(Bind<B>, &'i [Implementation])> {
        let bind = |implementation| Candidate::bind(self.session, implementation, &self.problem);
        let mut candidates = Vec::new();
        let (baseline, others) = match all.split_first() {
            Some((first, others)) if first.name == self.case.baseline => {
                candidates.push(bind(first)?);
                (Some(0), others)
            }
            _ => (None, all),
        };
        let mut alone = None;
        if self.case.operation.is_some() {
            alone = Some(candidates.len());
            let gemm = gemm_alone("GEMM alone", Provider::CublasLt, self.case.operation);
            candidates.push(bind(&gemm)?);
        }
        let bound = Bind {
            kept: candidates.len(),
            candidates,
            baseline,
            alone,
        };
        Ok((bound, others))
    }

    /// Bytes of the buffers of rank 0, which all ranks take for their own, so that they divide alike.
    fn bytes_of(&self, implementation: &Implementation) -> Result<usize> {
        let plan = (implementation.plan)(0, self.session.world(), &self.problem)?;
        Ok(plan.buffers.iter().map(|buffer| buffer.bytes()).sum())
    }

    /// Prepares, verifies and times the candidates that are bound, all in the same rounds.
    fn group(&self, bench: &mut Bench<B>, bound: &mut Bind<B>, number: usize) -> Result<Measured> {
        let session = self.session;
        let mut parts = match self.case.operation {
            Some(Operation::AllGatherMatmul) => {
                breakdown::bind(session, &bound.candidates, &self.problem)?
            }
            _ => Vec::new(),
        };
        // What is in every group is ready and verified since the first one.
        let first = if number == 0 { 0 } else { bound.kept };
        for candidate in bound.candidates[first..].iter_mut().chain(&mut parts) {
            (self.progress)(&format!("tuning {}", candidate.name));
            let [integers, reals] = &mut bench.inputs;
            reals.add(session, &candidate.operands)?;
            // What has no output is timed, with reals, and not verified.
            if with_role(&candidate.operands, Role::Output)
                .next()
                .is_some()
            {
                integers.add(session, &candidate.operands)?;
            }
            candidate.prepare(session, &bench.inputs[1])?;
        }
        if bound.candidates[first..].iter().any(|c| c.failed) {
            self.recapture(bound)?;
        }
        let [before, after] = bench.ways;
        let mut verdicts = self.verify((bound, first), bench, before)?;
        let all = bound.candidates.iter().map(|candidate| (candidate, true));
        let all = all.chain(parts.iter().map(|part| (part, false)));
        let contender = |(candidate, back_to_back)| {
            let Candidate { bound, .. }: &Candidate<B> = candidate;
            Some(BoundCandidate {
                session,
                candidate,
                bound: bound.as_ref().ok()?,
                inputs: &bench.inputs[1],
                back_to_back,
            })
        };
        let contenders: Vec<_> = all.filter_map(contender).collect();
        let contenders: Vec<_> = contenders.iter().map(|c| c as &dyn Contender).collect();
        let timing = Timing {
            session,
            clock: self.clock,
            effort: self.effort,
        };
        let mut times = timing
            .measure(&contenders, |round, rounds| {
                (self.progress)(&format!("timing, round {} of {rounds}", round + 1));
            })?
            .into_iter();
        let times: Vec<Option<Times>> = bound
            .candidates
            .iter()
            .map(|candidate| candidate.bound.as_ref().ok().and_then(|_| times.next()))
            .collect::<Vec<_>>()
            .into_iter()
            .chain(times.map(Some))
            .collect();
        let again = self.verify((bound, first), bench, after)?;
        for (verdict, again) in verdicts.iter_mut().zip(again) {
            *verdict = std::mem::take(verdict).and(again);
        }
        self.measured(bound, (first, number), (times, verdicts), &parts)
    }

    /// The verdicts of the candidates from the `first`-th on, in order. The GEMM alone comes last: what fails
    /// is rather found in a row.
    fn verify(
        &self,
        (all, first): (&mut Bind<B>, usize),
        bench: &mut Bench<B>,
        ways: &[Call],
    ) -> Result<Vec<Verdict>> {
        let Bench {
            inputs, verifier, ..
        } = bench;
        let mut verdicts = vec![Verdict::default(); all.candidates.len() - first];
        let mut order: Vec<_> = (first..all.candidates.len()).collect();
        order.sort_by_key(|&place| Some(place) == all.alone);
        for place in order {
            (self.progress)(&format!("verifying {}", all.candidates[place].name));
            for inputs in inputs.iter() {
                let candidate = &mut all.candidates[place];
                let Ok(bound) = &candidate.bound else {
                    break;
                };
                let found = verifier.verify(self.session, (candidate, bound), inputs, ways)?;
                let found = found.map(|found| {
                    let verdict = &mut verdicts[place - first];
                    *verdict = std::mem::take(verdict).and(found);
                });
                if candidate.survive(self.session, found)? {
                    self.recapture(all)?;
                }
            }
        }
        Ok(verdicts)
    }

    /// Captures all candidates anew. Collective.
    fn recapture(&self, all: &mut Bind<B>) -> Result<()> {
        let mut candidates = all.candidates.iter_mut();
        let mine = candidates.try_for_each(Candidate::recapture);
        let step = "capture after a failure";
        self.session
            .agree(step, mine.map(|()| Vec::new()))
            .map(drop)
    }

    fn measured(
        &self,
        bound: &Bind<B>,
        (first, number): (usize, usize),
        (mut times, verdicts): (Vec<Option<Times>>, Vec<Verdict>),
        parts: &[Candidate<B>],
    ) -> Result<Measured> {
        let of_parts = times.split_off(bound.candidates.len());
        let single = |place: Option<usize>| times.get(place?)?.as_ref()?.single();
        let limit = match (bound.alone, self.case.operation) {
            (Some(place), Some(operation)) => match &bound.candidates[place].bound {
                Ok(plan) => {
                    let gemm = (single(Some(place)), plan.algorithms());
                    let world = self.session.world();
                    Some(limit((operation, &self.problem), world, gemm, self.links)?)
                }
                Err(_) => None,
            },
            _ => None,
        };
        let group = Group {
            baseline_ms: single(bound.baseline),
            gemm_ms: single(bound.alone),
            limit_ms: limit.as_ref().map(|limit| limit.ms),
        };
        let new = bound.candidates.iter().zip(&times).enumerate().skip(first);
        let rows = new
            .zip(verdicts)
            .filter(|((place, _), _)| Some(*place) != bound.alone)
            .map(|((_, (candidate, times)), verdict)| {
                let mut row = match (&candidate.bound, times) {
                    (Ok(plan), Some(times)) => self.row(candidate, plan, times, verdict),
                    (Err(reason), _) if candidate.failed => Row {
                        status: Status::Wrong,
                        ..Row::not_run(&candidate.name, reason.clone())
                    },
                    (Err(reason), _) => Row::not_run(&candidate.name, reason.clone()),
                    (Ok(_), None) => Row::not_run(&candidate.name, "it was not timed".into()),
                };
                row.group = Some(number);
                row.part = self.is_part(candidate);
                row.compare(&group);
                row
            })
            .collect::<Vec<_>>();
        let of_parts = of_parts.into_iter().flatten().collect();
        Ok(Measured {
            breakdown: breakdown::breakdown(&rows, parts, of_parts),
            rows,
            group,
            limit,
        })
    }

    fn row(
        &self,
        candidate: &Candidate<B>,
        bound: &Bound<B>,
        times: &Times,
        verdict: Verdict,
    ) -> Row {
        let gemm = gemm_of(self.case.operation, self.session.world(), &self.problem);
        // Parts that only move bytes have no rate.
        let multiplies = candidate.operands.iter().any(|o| o.matrix == Matrix::B);
        let mut row = Row {
            transport: transport::names(B::KIND, bound.plan()),
            launches: Some(bound.plan().launches()),
            algorithms: bound.algorithms(),
            ..Row::new(&candidate.name, Kind::Ours, Status::Ok, None)
        };
        row.fill(times, verdict);
        let ms = row.ms().filter(|_| multiplies);
        row.tflops = ms.map(|ms| tflops(gemm, ms));
        row
    }

    /// Whether a candidate leaves some output of the operation to others.
    fn is_part(&self, candidate: &Candidate<B>) -> bool {
        let place = (self.session.rank(), self.session.world());
        let whole = self.case.operation;
        let whole = whole.map_or(Vec::new(), |o| o.operands(place, &self.problem, None));
        let own: Vec<_> = candidate.operands.iter().map(|own| own.matrix).collect();
        with_role(&whole, Role::Output).any(|output| !own.contains(&output.matrix))
    }

    /// Adds to each row what others published, and after them the rows of the peers.
    fn compare_with_others(&self, report: &mut Outcome) {
        for row in &mut report.rows {
            let figure = report
                .published
                .iter()
                .find(|f| f.is_of(&row.implementation));
            row.published_ms = figure.map(|figure| figure.ms);
        }
        let (Some(operation), Some(peers)) = (self.case.operation, self.peers) else {
            return;
        };
        let gemm = gemm_of(Some(operation), report.world, &self.problem);
        for figure in peers.of(operation, self.sizes, report.world) {
            let mut row = Row::of_peer(figure.name, figure.ms);
            row.part = figure.part;
            row.tflops = Some(tflops(gemm, figure.ms.median));
            report.groups.first().inspect(|group| row.compare(group));
            report.rows.push(row);
        }
    }
}
