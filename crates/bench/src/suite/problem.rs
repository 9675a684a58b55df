//! One problem of a run, for the implementations of one operation.

use std::rc::Rc;

use warpweave_overlap::Operation;
use warpweave_overlap::PlanError;
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::{Problem, Provider, Role};
use warpweave_report::statistics::Spread;
use warpweave_report::{Group, Kind, Operands, Outcome, Row, Status};
use warpweave_symm_mem::BackendKind;

use super::groups::{budget, divide};
use super::stage::{Run, Stage};
use super::{Case, Figure, Sizes};
use crate::alone::{breakdown, breakdown_parts, gemm_alone, gemm_of};
use crate::candidate::{Entrant, Form};
use crate::error::Result;
use crate::inputs::{InputSets, Matrices, Numbers, with_role};
use crate::limit::{limit, tflops};
use crate::plans::{Implementation, PlanCandidate};
use crate::session::ExecuteBackend;
use crate::verification::reference::References;
use crate::verification::{Batch, batches};

/// Input sets of each kind: calls that follow each other have different inputs.
const SETS: [(Numbers, usize); 2] = [(Numbers::Integers, 3), (Numbers::Reals, 2)];

/// The input sets that are verified where verification takes long: both kinds, and inputs that still change.
const FEW_SETS: [(Numbers, usize); 2] = [(Numbers::Integers, 2), (Numbers::Reals, 1)];

/// Elements of C that take the host tens of milliseconds to download and compare.
const LARGE: usize = 1 << 24;

/// How an implementation is called for verification before the timing, and after it.
const FORMS: [&[Form]; 2] = [&[Form::Run, Form::Replay]; 2];

/// The same where verification takes long: each form once, one before the timing and one after it.
const FEW_FORMS: [&[Form]; 2] = [&[Form::Run], &[Form::Replay]];

/// A problem with what all of its implementations share.
struct Bench<'a, B: ExecuteBackend> {
    stage: Stage<'a, B>,
    case: &'a Case,
    problem: Problem,
    inputs: InputSets<B>,
    references: Rc<References>,
    /// Before the timing, and after it.
    batches: [Vec<Batch>; 2],
}

/// Measures the implementations of `case` on a problem. Collective.
pub(super) fn measure<'a, B: ExecuteBackend>(
    run: &'a Run<'a, B>,
    case: &'a Case,
    sizes: Sizes,
    place: (usize, usize),
) -> Result<Outcome> {
    let (shape, dtype) = sizes;
    let span = tracing::info_span!("bench.problem", shape = %shape, dtype = %dtype);
    let _entered = span.enter();
    let (session, scaling) = (run.session, run.settings.scaling(dtype));
    let problem = super::problem(&session.backend, sizes).with_scaling(scaling);
    let dtype = format!("{dtype}{}", scaling.suffix());
    let label = format!("{shape} {dtype}");
    let stage = Stage::new(run, place, label);
    stage.at("reference");
    let matrices = Matrices::of(case.operation, session.world(), &problem);
    let large = problem.m * problem.n > LARGE;
    let (verified, forms) = match large || matrices.is_large() {
        true => (FEW_SETS, if large { FEW_FORMS } else { FORMS }),
        false => (SETS, FORMS),
    };
    let mut bench = Bench {
        stage,
        case,
        problem,
        inputs: InputSets::new(matrices, &SETS),
        references: References::compute(session, matrices, &verified)?,
        batches: forms.map(|forms| batches(forms, &verified)),
    };
    let mut report = Outcome::new(
        case.operation.map(|o| o.name().into()),
        Operands::Matrices { shape },
        dtype,
        session.world(),
    );
    let figures = run.settings.suite.published(sizes);
    let published = figures.iter().map(|figure| figure.published.clone());
    report.published = published.collect();
    bench.measure(&mut report)?;
    bench.compare_with_others(sizes, &figures, &mut report);
    Ok(report.compared())
}

impl<'a, B: ExecuteBackend> Bench<'a, B> {
    /// Measures group by group. The baseline, and the GEMM alone where there is a limit, are in every group.
    fn measure(&mut self, report: &mut Outcome) -> Result<()> {
        let all = self.case.implementations.as_slice();
        let (baseline, others) = match all.split_first() {
            Some((first, others)) if first.name == self.case.baseline => (Some(first), others),
            _ => (None, all),
        };
        let alone = self.case.operation.map(|operation| {
            let (name, provider) = ("GEMM alone", Provider::CublasLt);
            gemm_alone(name, provider, Some(operation))
        });
        let kept = baseline.into_iter().chain(&alone);
        let mut entrants: Vec<_> = kept
            .map(|one| self.bind(one, false))
            .collect::<Result<_>>()?;
        let (kept, baseline) = (entrants.len(), baseline.map(|_| 0));
        let alone = alone.map(|_| kept - 1);
        let bytes = others.iter().map(|other| self.bytes_of(other));
        let bytes = bytes.collect::<Result<Vec<_>>>()?;
        for group in divide(&bytes, budget(B::KIND)) {
            self.stage.at("allocating");
            for implementation in &others[group] {
                entrants.push(self.bind(implementation, false)?);
            }
            self.group(&mut entrants, (baseline, alone, kept), report)?;
            entrants.truncate(kept);
        }
        Ok(())
    }

    /// Binds an implementation. What is a part of the breakdown is not verified, and only single calls of it
    /// are timed.
    fn bind(&mut self, implementation: &Implementation, is_part: bool) -> Result<Entrant<'a>> {
        let run = self.stage.run;
        let mut schedules = run.schedules.borrow_mut();
        let schedules = &mut schedules;
        let mut made = PlanCandidate::new(run.session, schedules, implementation, &self.problem)?;
        if let Ok(candidate) = &mut made {
            candidate.take(&mut self.inputs)?;
            if !is_part {
                candidate.verified_by(&self.references);
            }
        }
        Ok(Entrant::new(&implementation.name, Kind::Ours, made))
    }

    /// What a call of an entrant takes the host of the slowest rank to enqueue. Collective.
    fn enqueue_us(&self, entrant: &Entrant<'_>) -> Result<[Option<Spread>; 2]> {
        let Ok(candidate) = &entrant.candidate else {
            return Ok([None; 2]);
        };
        let calls = if B::KIND == BackendKind::Cuda {
            100
        } else {
            10
        };
        let step = format!("enqueuing {}", entrant.name);
        self.stage.at(&step);
        let mine = candidate.enqueue_us(calls).map(|times| times.concat());
        let ranks = self.stage.run.session.agree(&step, mine)?;
        let spread = |from: usize| {
            let of_rank = |all: &Vec<f64>| Spread::of(all.get(from..from + calls)?);
            let ranks = ranks.iter().filter_map(of_rank);
            ranks.max_by(|a, b| a.median.total_cmp(&b.median))
        };
        Ok([spread(0), spread(calls)])
    }

    /// Bytes of the buffers of rank 0, which all ranks take for their own, so that they divide alike.
    fn bytes_of(&self, implementation: &Implementation) -> Result<usize> {
        let world = self.stage.run.session.world();
        let plan = match (implementation.plan)(0, world, &self.problem) {
            // A row with the reason, later.
            Err(PlanError::NarrowOperands { .. }) => return Ok(0),
            plan => plan?,
        };
        Ok(plan.buffers.iter().map(|buffer| buffer.bytes()).sum())
    }

    /// Measures the entrants that are bound, of which the first are `kept` from group to group, and adds what
    /// it finds to `report`.
    fn group(
        &mut self,
        entrants: &mut Vec<Entrant<'a>>,
        (baseline, alone, kept): (Option<usize>, Option<usize>, usize),
        report: &mut Outcome,
    ) -> Result<()> {
        let (world, number) = (report.world, report.groups.len());
        let parts = entrants.len();
        if self.case.operation == Some(Operation::AllGatherMatmul) && world > 1 {
            for part in breakdown_parts(entrants) {
                entrants.push(self.bind(&part, true)?);
            }
        }
        // What is in every group is ready and verified since the first one.
        let first = if number == 0 { 0 } else { kept };
        let mut new: Vec<_> = (first..entrants.len()).collect();
        // The GEMM alone comes last: what fails should fail in a row of the table.
        new.sort_by_key(|&place| Some(place) == alone);
        let batches = self.batches.each_ref().map(Vec::as_slice);
        let times = self.stage.measure(entrants, &new, batches)?;
        // A wrong row is compared with nothing.
        let right = |place: Option<usize>| {
            let row = entrants[place?].row(times[place?].as_ref());
            Some(row).filter(|row| row.status == Status::Ok)
        };
        let single = |place| right(place).and_then(|row| row.single_ms);
        let limit = right(alone).and_then(|row| {
            let (gemm, links) = (
                (row.single_ms?, row.algorithms),
                self.stage.run.links.as_ref(),
            );
            Some(limit(
                (self.case.operation?, &self.problem),
                world,
                gemm,
                links,
            ))
        });
        let group = Group {
            baseline_ms: single(baseline),
            gemm_ms: single(alone),
            limit_ms: limit.as_ref().map(|limit| limit.ms),
        };
        let mut rows = Vec::new();
        for place in (first..parts).filter(|place| Some(*place) != alone) {
            let mut row = entrants[place].row(times[place].as_ref());
            self.classify(&mut row);
            row.group = Some(number);
            if self.stage.run.settings.suite.measures_enqueuing() {
                let [alike, changing] = self.enqueue_us(&entrants[place])?;
                (row.enqueue_us, row.enqueue_changing_us) = (alike, changing);
            }
            rows.push(row);
        }
        let own = breakdown(&rows, &times[parts..]);
        report.breakdown = report.breakdown.take().or(own);
        report.limit = report.limit.take().or(limit);
        report.groups.push(group);
        report.rows.extend(rows);
        Ok(())
    }

    /// Says whether a row leaves some output of the operation to others, and at what rate it multiplies.
    fn classify(&self, row: &mut Row) {
        let (session, problem) = (self.stage.run.session, &self.problem);
        let (rank, world) = (session.rank(), session.world());
        let whole = self.case.operation;
        let whole = whole.map_or(Vec::new(), |o| o.operands((rank, world), problem, None));
        let mut implementations = self.case.implementations.iter();
        let own = implementations.find(|own| own.name == row.implementation);
        let own = own.map_or(Vec::new(), |own| (own.operands)(rank, world, problem));
        let has = |matrix| own.iter().any(|operand| operand.matrix == matrix);
        row.part = with_role(&whole, Role::Output).any(|output| !has(output.matrix));
        // Parts that only move bytes have no rate.
        let gemm = gemm_of(self.case.operation, world, problem);
        let ms = row.ms().filter(|_| has(Matrix::B));
        row.tflops = ms.map(|ms| tflops(gemm, ms));
    }

    /// Adds to each row what others published, and after them the rows of the peers.
    fn compare_with_others(&self, (shape, dtype): Sizes, figures: &[Figure], report: &mut Outcome) {
        for row in &mut report.rows {
            let mut figures = figures.iter();
            let figure = figures.find(|figure| figure.against == Some(&row.implementation));
            row.published_ms = figure.map(|figure| figure.published.ms);
        }
        let peers = self.stage.run.settings.peers.as_ref();
        let (Some(operation), Some(peers)) = (self.case.operation, peers) else {
            return;
        };
        let gemm = gemm_of(Some(operation), report.world, &self.problem);
        for figure in peers.of(operation.name(), (shape, dtype.name()), report.world) {
            let mut row = Row::of_peer(figure.name, figure.ms);
            row.part = figure.part;
            row.tflops = Some(tflops(gemm, figure.ms.median));
            report.rows.push(row);
        }
    }
}
