//! Whether a plan computes what it should: calls back to back with inputs that change and outputs poisoned before each,
//! every element of every rank compared.

pub mod comparison;
pub(crate) mod findings;
pub mod reference;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::plan::{Problem, Role};
use warpweave_symm_mem::{Backend, Memory};

use crate::candidate::{Candidate, InputSets, buffer_of};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::session::Session;
use crate::timing::Call;
use findings::Findings;
use reference::{Reference, ReferenceOf};

/// Not a number in every element type: an element that a call does not write is found.
pub(crate) const POISON: u8 = 0xff;

/// The outcome over all calls and all ranks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// Calls verified, on each rank.
    pub calls: u64,
    /// Elements compared, over all ranks.
    pub elements: u64,
    /// Elements that were wrong, over all ranks.
    pub wrong: u64,
    /// Elements of calls with integer inputs, which must be equal to the one right value.
    pub exact_elements: u64,
    /// ‖out − reference‖ / ‖reference‖ of the worst call with real inputs.
    pub relative_error: f64,
    /// What `relative_error` may be.
    pub tolerance: f64,
    /// Where the first rank that has one found its first wrong element.
    pub first: Option<Finding>,
}

/// A wrong element and where it was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rank.
    pub rank: usize,
    /// The element, in words.
    pub what: String,
}

impl Verdict {
    /// Whether all was right.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.relative_error <= self.tolerance
    }

    /// The verdict of all ranks, from what each has found.
    pub(crate) fn of_ranks(all: &[Vec<u8>]) -> Self {
        let ranks = all.iter().enumerate();
        ranks.fold(Verdict::default(), |verdict, (rank, words)| {
            let rank = Findings::from_words(words).verdict(rank);
            // All ranks make the same calls.
            let calls = rank.calls;
            Verdict {
                calls,
                ..verdict.and(rank)
            }
        })
    }

    /// Both verdicts as one.
    #[must_use]
    pub fn and(self, other: Verdict) -> Verdict {
        Verdict {
            calls: self.calls + other.calls,
            elements: self.elements + other.elements,
            wrong: self.wrong + other.wrong,
            exact_elements: self.exact_elements + other.exact_elements,
            relative_error: worst(self.relative_error, other.relative_error),
            tolerance: self.tolerance.max(other.tolerance),
            first: self.first.or(other.first),
        }
    }
}

/// The larger, with no number the largest.
fn worst(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::INFINITY
    } else {
        a.max(b)
    }
}

/// Verifies the candidates of one problem.
pub struct Verifier<B: Backend> {
    references: BTreeMap<(Numbers, usize), Reference>,
    /// The outputs of calls that follow each other, one behind the other.
    outputs: B::Memory,
    bytes: usize,
}

impl<B: ExecuteBackend> Verifier<B> {
    /// Computes the references of all `sets`. Collective.
    ///
    /// # Errors
    /// What the computation reports.
    pub fn new(session: &Session<B>, problem: &Problem, sets: &[&InputSets<B>]) -> Result<Self> {
        let exchange: &Arc<_> = &session.exchange;
        let mut references = BTreeMap::new();
        for inputs in sets {
            for set in 0..inputs.len() {
                let of = ReferenceOf {
                    problem,
                    numbers: inputs.numbers,
                    set,
                };
                let reference = Reference::compute(exchange, of, session.threads())?;
                references.insert((inputs.numbers, set), reference);
            }
        }
        let most = sets.iter().map(|sets| sets.len()).max().unwrap_or(0);
        let bytes = problem.m * problem.n * problem.dtype.size();
        let outputs = session.backend.allocate((bytes * most).max(1))?;
        Ok(Self {
            references,
            outputs,
            bytes,
        })
    }

    /// Calls `candidate` with every set of `inputs`, back to back, once as it is and once as a graph, and compares.
    /// Collective; the verdict is that of all ranks.
    ///
    /// # Errors
    /// A call failed on some rank; a wrong result is no error.
    pub fn verify(
        &self,
        session: &Session<B>,
        candidate: &Candidate<B>,
        bound: &Bound<B>,
        inputs: &InputSets<B>,
    ) -> Result<Verdict> {
        let mine = [Call::Run, Call::Replay].into_iter().try_fold(
            Findings::default(),
            |mut findings, how| {
                self.call_all(session, candidate, bound, inputs, how)?;
                self.compare(session, inputs, how, &mut findings)?;
                Ok(findings)
            },
        );
        let words = mine.map(|findings| findings.to_words());
        let all = session.settle(&format!("verification of {}", candidate.name), words)?;
        Ok(Verdict::of_ranks(&all))
    }

    fn call_all(
        &self,
        session: &Session<B>,
        candidate: &Candidate<B>,
        bound: &Bound<B>,
        inputs: &InputSets<B>,
        how: Call,
    ) -> Result<()> {
        let (_, c) = buffer_of(bound, Role::Output)?;
        inputs.load_b(session, bound)?;
        for set in 0..inputs.len() {
            inputs.load_a(session, bound, candidate.takes, set)?;
            // SAFETY: the whole of C, which has `bytes` bytes as its plan is of this problem; the stream orders the plan's
            // own work on it.
            unsafe {
                session
                    .backend
                    .fill(&session.stream, c, POISON, self.bytes)?
            };
            candidate.call(session, bound, how)?;
            if session.injection.corrupts() {
                // SAFETY: as above; C has at least one element.
                unsafe { session.backend.fill(&session.stream, c, POISON, 1)? };
            }
            let to = self.outputs.address().add(set * self.bytes);
            // SAFETY: `outputs` has room for as many outputs as there are sets; C as above.
            unsafe { session.backend.copy(&session.stream, to, c, self.bytes)? };
        }
        Ok(bound.synchronize()?)
    }

    fn compare(
        &self,
        session: &Session<B>,
        inputs: &InputSets<B>,
        how: Call,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut out = vec![0; self.bytes];
        for set in 0..inputs.len() {
            let from = self.outputs.address().add(set * self.bytes);
            // SAFETY: the output of this set, written by `call_all`.
            unsafe { session.backend.download(&session.stream, from, &mut out)? };
            if let Some(reference) = self.references.get(&(inputs.numbers, set)) {
                let comparison = reference.compare(&out, session.threads());
                let tolerance = reference.expectation().tolerance();
                findings.add(inputs.numbers, comparison, tolerance, |first| {
                    format!(
                        "call {set} ({how:?}, {:?}): C[{}, {}] is {} instead of {}",
                        inputs.numbers, first.row, first.col, first.got, first.wanted
                    )
                });
            }
        }
        Ok(())
    }
}
