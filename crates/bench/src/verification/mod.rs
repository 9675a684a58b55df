//! Whether a plan computes what it should: calls back to back with inputs that change and outputs poisoned
//! before each, every element of every rank compared.

pub mod comparison;
pub(crate) mod findings;
pub mod reference;

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize};
use warpweave_overlap::execute::{Bound, ExecuteBackend};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::Role;
use warpweave_symm_mem::{Backend, DevicePtr, Memory};

use crate::candidate::Candidate;
use crate::error::Result;
use crate::inputs::{InputSets, Matrices, Numbers, Part, address, with_role};
use crate::session::Session;
use crate::timing::Call;
use comparison::Comparison;
use findings::Findings;
use reference::{Reference, ReferenceOf};

/// Not a number in every element type: an element that a call does not write is found.
pub(crate) const POISON: u8 = 0xff;

/// The outcome over all calls and all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    #[serde(default = "infinite", deserialize_with = "finite_or_infinite")]
    pub relative_error: f64,
    /// What `relative_error` may be.
    pub tolerance: f64,
    /// Where the first rank that has one found its first wrong element.
    pub first: Option<Finding>,
}

/// A wrong element and where it was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The rank.
    pub rank: usize,
    /// The element.
    pub what: String,
}

impl Verdict {
    /// Whether all was right.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.relative_error <= self.tolerance
    }

    /// What was wrong first; `None` where all was right.
    pub fn reason(&self) -> Option<String> {
        if self.is_right() {
            return None;
        }
        let Verdict {
            elements, wrong, ..
        } = self;
        Some(match &self.first {
            Some(Finding { rank, what }) => {
                format!("{wrong} of {elements} elements; rank {rank}, {what}")
            }
            None => format!(
                "relative error {:.2e}, at most {:.2e} is right",
                self.relative_error, self.tolerance
            ),
        })
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

fn infinite() -> f64 {
    f64::INFINITY
}

/// JSON has no infinity: it is `null`, or left out.
fn finite_or_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
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
    matrices: Matrices,
    references: BTreeMap<(Numbers, usize), Reference>,
    /// The outputs of calls that follow each other, one after the other.
    outputs: Option<B::Memory>,
    /// The outputs of one call on the host.
    downloaded: Vec<u8>,
}

/// An output and where it lies among those of a call.
struct Output<'a> {
    operand: &'a Operand,
    part: Part,
    bytes: Range<usize>,
}

impl<B: ExecuteBackend> Verifier<B> {
    /// Computes the references of so many sets of each kind. Collective.
    pub fn new(
        session: &Session<B>,
        matrices: Matrices,
        sets: &[(Numbers, usize)],
    ) -> Result<Self> {
        let mut references = BTreeMap::new();
        for &(numbers, sets) in sets {
            for set in 0..sets {
                let of = ReferenceOf {
                    matrices,
                    numbers,
                    set,
                };
                let reference = Reference::compute(&session.exchange, of, session.threads())?;
                references.insert((numbers, set), reference);
            }
        }
        Ok(Self {
            matrices,
            references,
            outputs: None,
            downloaded: Vec::new(),
        })
    }

    /// Calls `candidate` with every set of `inputs` that there is a reference of, back to back, in each of
    /// `ways`, and compares. Collective; the verdict is that of all ranks. What has no output is right.
    pub fn verify(
        &mut self,
        session: &Session<B>,
        (candidate, bound): (&Candidate<B>, &Bound<B>),
        inputs: &InputSets<B>,
        ways: &[Call],
    ) -> Result<Result<Verdict>> {
        let outputs = self.outputs_of(candidate);
        if outputs.is_empty() {
            return Ok(Ok(Verdict::default()));
        }
        let mine = ways
            .iter()
            .try_fold(Findings::default(), |mut findings, &how| {
                self.call_all(session, (candidate, bound, &outputs), inputs, how)?;
                self.compare(session, &outputs, (inputs.numbers, how), &mut findings)?;
                Ok(findings)
            });
        let words = mine.map(|findings| findings.to_words());
        let all = session.attempt(&format!("verification of {}", candidate.name), words)?;
        Ok(all.map(|all| Verdict::of_ranks(&all)))
    }

    fn outputs_of<'a>(&self, candidate: &'a Candidate<B>) -> Vec<Output<'a>> {
        let mut end = 0;
        with_role(&candidate.operands, Role::Output)
            .map(|operand| {
                let (start, part) = (end, Part::from(operand));
                end = start + part.len() * self.matrices.problem.dtype.size();
                Output {
                    operand,
                    part,
                    bytes: start..end,
                }
            })
            .collect()
    }

    fn call_all(
        &mut self,
        session: &Session<B>,
        (candidate, bound, outputs): (&Candidate<B>, &Bound<B>, &[Output<'_>]),
        inputs: &InputSets<B>,
        how: Call,
    ) -> Result<()> {
        let plan = (bound, candidate.operands.as_slice());
        let sets = self.sets(inputs.numbers);
        let each = outputs.last().map_or(0, |output| output.bytes.end);
        let room = self.room(session, sets * each)?;
        let backend = &session.backend;
        inputs.load_weights(session, plan)?;
        for set in 0..sets {
            inputs.load(session, plan, set)?;
            for output in outputs {
                let to = address(bound, output.operand)?;
                // SAFETY: `address` has checked that the buffer has that many bytes; the stream orders the
                // plan's own work on it.
                unsafe { backend.fill(&session.stream, to, POISON, output.bytes.len())? };
            }
            candidate.call(session, bound, how)?;
            for output in outputs.iter().filter(|output| !output.bytes.is_empty()) {
                let from = address(bound, output.operand)?;
                if session.injection.corrupts() {
                    let element = self.matrices.problem.dtype.size();
                    // SAFETY: as above; the output has at least one element.
                    unsafe { backend.fill(&session.stream, from, POISON, element)? };
                }
                let to = room.add(set * each + output.bytes.start);
                // SAFETY: there is room for the outputs of as many calls as there are sets; the buffer as
                // above.
                unsafe { backend.copy(&session.stream, to, from, output.bytes.len())? };
            }
        }
        Ok(bound.synchronize()?)
    }

    fn compare(
        &mut self,
        session: &Session<B>,
        outputs: &[Output<'_>],
        (numbers, how): (Numbers, Call),
        findings: &mut Findings,
    ) -> Result<()> {
        let each = outputs.last().map_or(0, |output| output.bytes.end);
        // Kept from call to call: new pages cost more than the copy.
        let mut all = std::mem::take(&mut self.downloaded);
        all.resize(each, 0);
        let Some(memory) = &self.outputs else {
            return Ok(());
        };
        for set in 0..self.sets(numbers) {
            let from = memory.address().add(set * each);
            // SAFETY: the outputs of this set, written by `call_all`.
            unsafe { session.backend.download(&session.stream, from, &mut all)? };
            let Some(reference) = self.references.get(&(numbers, set)) else {
                continue;
            };
            let mut call = Comparison::default();
            let (mut tolerance, mut culprit) = (0.0f64, None);
            for output in outputs {
                let matrix = output.part.matrix;
                let bytes = &all[output.bytes.clone()];
                let compared = reference.compare(&output.part, bytes, session.threads());
                tolerance = tolerance.max(reference.of().expectation(matrix).tolerance());
                if compared.first.is_some() {
                    culprit.get_or_insert(matrix);
                }
                call = call.and(compared);
            }
            findings.add(numbers, call, tolerance, |first| {
                format!(
                    "call {set} ({how:?}, {numbers:?}): {:?}[{}, {}] is {} instead of {}",
                    culprit.unwrap_or(Matrix::C),
                    first.row,
                    first.col,
                    first.got,
                    first.wanted
                )
            });
        }
        self.downloaded = all;
        Ok(())
    }

    /// How many sets of a kind have a reference.
    fn sets(&self, numbers: Numbers) -> usize {
        let of_kind = |(kind, _): &&(Numbers, usize)| *kind == numbers;
        self.references.keys().filter(of_kind).count()
    }

    /// Memory for outputs, larger than before where that is too small.
    fn room(&mut self, session: &Session<B>, bytes: usize) -> Result<DevicePtr> {
        let large = |memory: &B::Memory| memory.bytes() >= bytes;
        if !self.outputs.as_ref().is_some_and(large) {
            self.outputs = None;
            self.outputs = Some(session.backend.allocate(bytes.max(1))?);
        }
        let memory = self.outputs.as_ref();
        Ok(memory.map_or(DevicePtr::NULL, |memory| memory.address()))
    }
}

#[cfg(test)]
mod tests;
