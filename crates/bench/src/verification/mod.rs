//! Whether a candidate computes what it should: calls back to back with inputs that change and outputs
//! poisoned before each, every element of every rank compared.

pub mod comparison;
pub mod reference;

use warpweave_symm_mem::{DevicePtr, Memory};

use crate::candidate::{Candidate, Form, Output};
use crate::error::Result;
use crate::inputs::{Numbers, Set};
use crate::session::{ExecuteBackend, Session};
use comparison::{Comparison, WrongElement};
use warpweave_report::{Finding, Metric, Verdict};

/// NaN in every element type, so that an element that a call does not write is found.
const POISON: u8 = 0xff;

/// What `rank` found in a call; `words` name a wrong element.
fn verdict_of(
    (rank, numbers): (usize, Numbers),
    call: Comparison,
    tolerance: f64,
    words: impl FnOnce(&WrongElement) -> String,
) -> Verdict {
    let is_exact = numbers == Numbers::Integers;
    Verdict {
        calls: 1,
        elements: call.elements,
        wrong: call.wrong,
        exact_elements: if is_exact { call.elements } else { 0 },
        relative_error: if is_exact { 0.0 } else { call.relative_error() },
        tolerance: if is_exact { 0.0 } else { tolerance },
        first: call.first.as_ref().map(|first| Finding {
            rank,
            what: words(first),
        }),
    }
}

/// Calls that are made back to back and compared afterwards.
pub type Batch = Vec<(Form, Set)>;

/// A batch of one call in this form for each of `sets` input sets.
pub fn batch(form: Form, numbers: Numbers, sets: usize) -> Batch {
    let call = |index| (form, Set { numbers, index });
    (0..sets).map(call).collect()
}

/// A batch in each of `forms` for each kind of numbers, with that many input sets.
pub fn batches(forms: &[Form], sets: &[(Numbers, usize)]) -> Vec<Batch> {
    let each = |&(numbers, sets)| forms.iter().map(move |&form| batch(form, numbers, sets));
    sets.iter().flat_map(each).collect()
}

/// The calls of a batch that a candidate with or without a graph can make.
pub(crate) fn possible(batch: &[(Form, Set)], has_graph: bool) -> Batch {
    let can = |(form, _): &&(Form, Set)| *form == Form::Run || has_graph;
    batch.iter().filter(can).copied().collect()
}

/// Verifies candidates, one after the other.
pub struct Verifier<'a, B: ExecuteBackend> {
    session: &'a Session<B>,
    /// The outputs of the calls of a batch, one after the other.
    kept: Option<B::Memory>,
    /// One output of one call, on the host.
    downloaded: Vec<u8>,
}

impl<'a, B: ExecuteBackend> Verifier<'a, B> {
    /// A verifier that has no memory for outputs yet.
    pub fn new(session: &'a Session<B>) -> Self {
        Self {
            session,
            kept: None,
            downloaded: Vec::new(),
        }
    }

    /// Makes the calls of each of `batches`, as graphs only where there is one, and compares. Collective; the
    /// verdict is that of all ranks. What has no output is right.
    ///
    /// # Errors
    /// A rank did not come; within, what failed on some rank though all of them came.
    pub fn verify(
        &mut self,
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
                self.call_all((candidate, &outputs), &calls)?;
                found = self.compare((candidate, &outputs), &calls, found)?;
            }
            Ok(found)
        });
        let all = self
            .session
            .attempt(&format!("verification of {}", candidate.name()), mine)?;
        Ok(all.map(Verdict::of_ranks))
    }

    fn call_all(
        &mut self,
        (candidate, outputs): (&dyn Candidate, &[Output]),
        calls: &[(Form, Set)],
    ) -> Result<()> {
        let session = self.session;
        let (backend, stream) = (&session.backend, &session.stream);
        let each: usize = outputs.iter().map(|output| output.bytes).sum();
        let mut to = self.room(calls.len() * each)?;
        for (i, &(form, set)) in calls.iter().enumerate() {
            if i == 0 || calls[i - 1].1.numbers != set.numbers {
                candidate.prepare(set.numbers)?;
            }
            candidate.load(set)?;
            let outputs = outputs.iter().filter(|output| output.bytes > 0);
            for output in outputs.clone() {
                // SAFETY: all of the output, which only calls write; the stream orders them with this.
                unsafe { backend.fill(stream, output.address, POISON, output.bytes)? };
            }
            candidate.call(form)?;
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
        (candidate, outputs): (&dyn Candidate, &[Output]),
        calls: &[(Form, Set)],
        mut found: Verdict,
    ) -> Result<Verdict> {
        let Some(memory) = &self.kept else {
            return Ok(found);
        };
        let (session, mut from) = (self.session, memory.address());
        for (i, &(form, set)) in calls.iter().enumerate() {
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
            let verdict = verdict_of((rank, set.numbers), call, tolerance, |first| {
                let place = candidate.place(culprit.unwrap_or_default(), first);
                let (numbers, set) = (set.numbers, set.index);
                format!(
                    "call {i} ({form:?}, {numbers:?}, set {set}): {place} is {} instead of {}",
                    first.got, first.wanted
                )
            });
            found = found.and(verdict);
        }
        Ok(found)
    }

    /// Memory for outputs, larger than before where that is too small.
    fn room(&mut self, bytes: usize) -> Result<DevicePtr> {
        let large = |memory: &B::Memory| memory.bytes() >= bytes;
        if !self.kept.as_ref().is_some_and(large) {
            self.kept = None;
            self.kept = Some(self.session.backend.allocate(bytes.max(1))?);
        }
        let memory = self.kept.as_ref();
        Ok(memory.map_or(DevicePtr::NULL, |memory| memory.address()))
    }
}

#[cfg(test)]
mod tests;
