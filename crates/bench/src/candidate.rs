//! The trait of what is measured, a plan or a collective: its inputs are loaded, it is called, its outputs
//! are compared, and its calls are timed.

use warpweave_report::{Kind, Metric, Row, Status, Times, Verdict};
use warpweave_symm_mem::DevicePtr;

use crate::error::Result;
use crate::inputs::{Numbers, Set};
use crate::verification::comparison::{Comparison, WrongElement};

/// The form of a call: how it is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Operation by operation.
    Run,
    /// As a graph.
    Replay,
}

impl Form {
    /// The form in which the calls of a metric are enqueued.
    pub const fn of(metric: Metric) -> Self {
        match metric {
            Metric::Single | Metric::BackToBack => Form::Run,
            Metric::GraphSingle | Metric::Graph => Form::Replay,
        }
    }
}

/// Elements that a call writes on this rank.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The first element.
    pub address: DevicePtr,
    /// Size of all elements.
    pub bytes: usize,
    /// Size of one element.
    pub element: usize,
}

/// Calls that all ranks make together, on the session's stream. What a candidate does not have, such as
/// inputs, a graph or outputs, it need not mention. Errors are what the backend reports.
pub trait Candidate {
    /// Its name in tables and errors.
    fn name(&self) -> &str;

    /// What is timed, single calls first; the same on all ranks.
    fn metrics(&self) -> &'static [Metric] {
        &[Metric::Single]
    }

    /// Makes the first call, with the first set of reals, chooses algorithms by it, and captures another
    /// call. Returns why there is no graph if calls can be made nevertheless.
    fn first_call(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Captures the call anew, after a failure of another candidate with which it may share collectives.
    fn capture(&mut self) -> Result<()> {
        Ok(())
    }

    /// Forgets the graph, as another rank has none.
    fn drop_graph(&mut self) {}

    /// After a failed call: makes whole again what this shares with others. `None` if nothing can.
    fn recover(&mut self) -> Option<Result<()>> {
        None
    }

    /// Enqueues what calls with inputs of this kind need and never change.
    fn prepare(&self, _numbers: Numbers) -> Result<()> {
        Ok(())
    }

    /// Enqueues the copy of a set into the inputs.
    fn load(&self, _set: Set) -> Result<()> {
        Ok(())
    }

    /// Enqueues one call, or a replay of the captured one.
    fn call(&self, form: Form) -> Result<()>;

    /// Waits until all that was enqueued has ended.
    fn synchronize(&self) -> Result<()>;

    /// Times in µs that so many calls take the host to enqueue, each on an idle stream: at the candidate's M,
    /// and at an M that changes from call to call among some that it knows. What it does not have is empty.
    /// All ranks make the same calls.
    fn enqueue_us(&self, _calls: usize) -> Result<[Vec<f64>; 2]> {
        Ok([Vec::new(), Vec::new()])
    }

    /// What is verified. Nothing but calls writes it, those of peers only once this rank's next call has
    /// begun.
    ///
    /// # Errors
    /// A buffer is not what the operation says it is.
    fn outputs(&self) -> Result<Vec<Output>> {
        Ok(Vec::new())
    }

    /// Compares what a call with `set` left in the output of this number, and says how large its relative
    /// error may be.
    fn compare(&self, _output: usize, _set: Set, _got: &[u8]) -> (Comparison, f64) {
        Default::default()
    }

    /// The name of an element of an output.
    fn place(&self, _output: usize, element: &WrongElement) -> String {
        format!("element {}", element.col)
    }

    /// Adds to a row what is known without measuring it.
    fn describe(&self, _row: &mut Row) {}
}

/// A candidate that is to become a row, or why it cannot.
pub struct Entrant<'a> {
    /// Its name in tables.
    pub name: String,
    /// Whose it is.
    pub kind: Kind,
    /// The candidate, or why there is none.
    pub candidate: Result<Box<dyn Candidate + 'a>, String>,
    /// Whether there is none because a call failed.
    pub failed: bool,
    /// Why there are no times of graphs.
    pub no_graph: Option<String>,
    /// The verdict on all calls that were verified.
    pub verdict: Verdict,
}

impl<'a> Entrant<'a> {
    /// Not called yet.
    pub fn new(name: &str, kind: Kind, made: Result<impl Candidate + 'a, String>) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            candidate: made.map(|candidate| Box::new(candidate) as _),
            failed: false,
            no_graph: None,
            verdict: Verdict::default(),
        }
    }

    /// Its row, with what was measured.
    pub fn row(&self, times: Option<&Times>) -> Row {
        let without = |status, reason: &str| {
            let reason = Some(reason.to_owned());
            Row::new(&self.name, self.kind, status, reason)
        };
        match (&self.candidate, times) {
            (Ok(candidate), Some(times)) => {
                let mut row = Row::new(&self.name, self.kind, Status::Ok, self.no_graph.clone());
                candidate.describe(&mut row);
                row.fill(times, self.verdict.clone());
                row
            }
            (Ok(_), None) => without(Status::NotRun, "it was not timed"),
            (Err(reason), _) if self.failed => without(Status::Wrong, reason),
            (Err(reason), _) => without(Status::NotRun, reason),
        }
    }
}
