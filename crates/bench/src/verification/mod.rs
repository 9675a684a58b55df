//! Whether a candidate computes what it should: calls back to back with inputs that change and outputs
//! poisoned before each, every element of every rank compared.

pub mod comparison;
pub mod reference;

use serde::{Deserialize, Deserializer, Serialize};
use warpweave_symm_mem::{Backend, DevicePtr, Memory};

use crate::candidate::{Call, Candidate, Output, Set};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::report::Metric;
use crate::session::{ExecuteBackend, Session};
use comparison::{Comparison, WrongElement};

/// Not a number in every element type: an element that a call does not write is found.
const POISON: u8 = 0xff;

/// The outcome over all calls and all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Calls verified, on each rank.
    pub calls: u64,
    /// Elements compared, over all ranks.
    pub elements: u64,
    /// Elements that were wrong, over all ranks.
    #[serde(default)]
    pub wrong: u64,
    /// Elements of calls with integer inputs, which must be equal to the one right value.
    #[serde(default)]
    pub exact_elements: u64,
    /// ‖out − reference‖ / ‖reference‖ of the worst call with real inputs.
    #[serde(default = "infinite", deserialize_with = "finite_or_infinite")]
    pub relative_error: f64,
    /// What `relative_error` may be.
    #[serde(default)]
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

    /// Adds what `rank` found in a call.
    fn add(
        &mut self,
        (rank, numbers): (usize, Numbers),
        call: Comparison,
        tolerance: f64,
        words: impl FnOnce(&WrongElement) -> String,
    ) {
        self.calls += 1;
        self.elements += call.elements;
        self.wrong += call.wrong;
        match numbers {
            Numbers::Integers => self.exact_elements += call.elements,
            Numbers::Reals => {
                self.relative_error = worst(self.relative_error, call.relative_error());
                self.tolerance = self.tolerance.max(tolerance);
            }
        }
        if let (None, Some(first)) = (&self.first, &call.first) {
            let what = words(first);
            self.first = Some(Finding { rank, what });
        }
    }

    /// The verdict of all ranks, from what each has found, as JSON. What cannot be read is not right.
    fn of_ranks(all: &[Vec<u8>]) -> Self {
        all.iter().fold(Verdict::default(), |verdict, found| {
            let unreadable = || Verdict {
                relative_error: f64::INFINITY,
                ..Verdict::default()
            };
            let rank: Self = serde_json::from_slice(found).unwrap_or_else(|_| unreadable());
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

/// Calls that are made back to back and compared afterwards.
pub type Batch = Vec<(Call, Set)>;

/// What all calls of a batch take one set after the other, all in the same form.
pub fn batch(how: Call, numbers: Numbers, sets: usize) -> Batch {
    let call = |index| (how, Set { numbers, index });
    (0..sets).map(call).collect()
}

/// The calls of a batch that a candidate with or without a graph can make.
pub(crate) fn possible(batch: &[(Call, Set)], has_graph: bool) -> Batch {
    let calls = batch.iter().copied();
    calls
        .filter(|(how, _)| *how == Call::Run || has_graph)
        .collect()
}

/// Verifies candidates, one after the other.
pub struct Verifier<B: Backend> {
    /// The outputs of the calls of a batch, one after the other.
    kept: Option<B::Memory>,
    /// One output of one call, on the host.
    downloaded: Vec<u8>,
}

impl<B: ExecuteBackend> Default for Verifier<B> {
    fn default() -> Self {
        Self {
            kept: None,
            downloaded: Vec::new(),
        }
    }
}

impl<B: ExecuteBackend> Verifier<B> {
    /// Makes the calls of each of `batches`, as graphs only where there is one, and compares. Collective; the
    /// verdict is that of all ranks. What has no output is right.
    ///
    /// # Errors
    /// A rank did not come; within, what failed on some rank though all of them came.
    pub fn verify(
        &mut self,
        session: &Session<B>,
        candidate: &dyn Candidate,
        batches: &[Batch],
    ) -> Result<Result<Verdict>> {
        let outputs = candidate.outputs();
        if outputs.as_ref().is_ok_and(Vec::is_empty) {
            return Ok(Ok(Verdict::default()));
        }
        let has_graph = candidate.metrics().contains(&Metric::Graph);
        let mine = outputs.and_then(|outputs| {
            let mut found = Verdict::default();
            for batch in batches {
                let calls = possible(batch, has_graph);
                self.call_all(session, (candidate, &outputs), &calls)?;
                self.compare(session, (candidate, &outputs), &calls, &mut found)?;
            }
            Ok(serde_json::to_vec(&found).map_err(std::io::Error::from)?)
        });
        let all = session.attempt(&format!("verification of {}", candidate.name()), mine)?;
        Ok(all.map(|all| Verdict::of_ranks(&all)))
    }

    fn call_all(
        &mut self,
        session: &Session<B>,
        (candidate, outputs): (&dyn Candidate, &[Output]),
        calls: &[(Call, Set)],
    ) -> Result<()> {
        let Session {
            backend, stream, ..
        } = session;
        let each: usize = outputs.iter().map(|output| output.bytes).sum();
        let mut to = self.room(session, calls.len() * each)?;
        for (i, &(how, set)) in calls.iter().enumerate() {
            if i == 0 || calls[i - 1].1.numbers != set.numbers {
                candidate.prepare(set.numbers)?;
            }
            candidate.load(set)?;
            let outputs = outputs.iter().filter(|output| output.bytes > 0);
            for output in outputs.clone() {
                // SAFETY: all of the output, which only calls write; the stream orders them with this.
                unsafe { backend.fill(stream, output.address, POISON, output.bytes)? };
            }
            candidate.call(how)?;
            for output in outputs {
                if session.injection.corrupts() {
                    // SAFETY: as above; the output has at least one element.
                    unsafe { backend.fill(stream, output.address, POISON, output.element)? };
                }
                // SAFETY: there is room for the outputs of all calls; the output as above.
                unsafe { backend.copy(stream, to, output.address, output.bytes)? };
                to = to.add(output.bytes);
            }
        }
        candidate.synchronize()
    }

    fn compare(
        &mut self,
        session: &Session<B>,
        (candidate, outputs): (&dyn Candidate, &[Output]),
        calls: &[(Call, Set)],
        found: &mut Verdict,
    ) -> Result<()> {
        let Some(memory) = &self.kept else {
            return Ok(());
        };
        let mut from = memory.address();
        for (i, &(how, set)) in calls.iter().enumerate() {
            let (mut call, mut tolerance) = (Comparison::default(), 0.0f64);
            let mut culprit = None;
            for (number, output) in outputs.iter().enumerate() {
                // Kept from call to call: new pages cost more than the copy.
                self.downloaded.resize(output.bytes, 0);
                let got = &mut self.downloaded[..];
                // SAFETY: this output of this call, as `call_all` has kept it.
                unsafe { session.backend.download(&session.stream, from, got)? };
                from = from.add(output.bytes);
                let (compared, allowed) = candidate.compare(number, set, got);
                if compared.first.is_some() {
                    culprit.get_or_insert(number);
                }
                (call, tolerance) = (call.and(compared), tolerance.max(allowed));
            }
            let rank = session.rank();
            found.add((rank, set.numbers), call, tolerance, |first| {
                let place = candidate.place(culprit.unwrap_or_default(), first);
                let (numbers, set) = (set.numbers, set.index);
                format!(
                    "call {i} ({how:?}, {numbers:?}, set {set}): {place} is {} instead of {}",
                    first.got, first.wanted
                )
            });
        }
        Ok(())
    }

    /// Memory for outputs, larger than before where that is too small.
    fn room(&mut self, session: &Session<B>, bytes: usize) -> Result<DevicePtr> {
        let large = |memory: &B::Memory| memory.bytes() >= bytes;
        if !self.kept.as_ref().is_some_and(large) {
            self.kept = None;
            self.kept = Some(session.backend.allocate(bytes.max(1))?);
        }
        let memory = self.kept.as_ref();
        Ok(memory.map_or(DevicePtr::NULL, |memory| memory.address()))
    }
}

#[cfg(test)]
mod tests;
