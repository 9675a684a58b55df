//! A collective call by one method (a variant of ours, or NCCL) as a candidate, and tables of such rows.

use std::rc::Rc;

use warpweave_comm::collective::{Call, Operation, Variant};
use warpweave_report::Metric;
use warpweave_symm_mem::{DType, Memory};

use super::expected::Expected;
use super::memory::{Arena, MemoryKind, SETS};
use super::method::{Libraries, Method};
use super::nccl::NcclBackend;
use super::operation::{bytes_of, call_of};
use crate::candidate::{Candidate, Entrant, Form, Output};
use crate::error::{BenchError, Result, if_available};
use crate::inputs::Set;
use crate::session::Session;
use crate::verification::comparison::Comparison;

/// Bytes that are downloaded and compared at once.
const PIECE: usize = 64 << 20;

/// The expected outputs of at most this many bytes are kept.
const KEPT: usize = 4 << 20;

/// Rows that compute the same.
pub(super) struct Table<'a> {
    /// Its place in the report among those of all sizes.
    pub place: usize,
    pub name: &'static str,
    pub entrants: Vec<Entrant<'a>>,
    /// The variant that the library chooses.
    pub selected: Option<Variant>,
    /// Whether it computes nothing but the call, so that links limit it.
    pub is_call_alone: bool,
}

/// What a row enqueues around its call.
pub(super) trait Around<B: NcclBackend> {
    /// The name of the row.
    fn name(&self) -> &str;

    /// Enqueues the call of `row`, with what is around it.
    fn enqueue(&self, row: &Row<'_, B>) -> Result<()>;

    /// What the row writes; `None` if that is the output of `call`.
    fn outputs(&self, call: &Call) -> Option<Vec<Output>>;

    /// Compares the output of this number in a call with the inputs of `set`; `None` if that is the output of
    /// the call alone.
    fn compare(
        &self,
        session: &Session<B>,
        output: usize,
        set: usize,
        got: &[u8],
    ) -> Option<Comparison>;
}

/// A row that can run here.
pub(super) struct Row<'a, B: NcclBackend> {
    pub call: Call,
    pub arena: Rc<Arena<'a, B>>,
    pub method: Method,
    bytes: [usize; 2],
    around: Option<Box<dyn Around<B> + 'a>>,
    graph: Option<B::Graph>,
}

impl<'a, B: NcclBackend> Row<'a, B> {
    /// `call` by `method`, with operands in the memory that it takes: with work around it ours takes local
    /// memory. `Err` says why it cannot run here.
    pub fn new(
        arena: &Rc<Arena<'a, B>>,
        method: Method,
        call: Call,
        around: Option<Box<dyn Around<B> + 'a>>,
    ) -> Result<Result<Self, String>> {
        let libraries = &arena.libraries;
        if let Some(Err(reason)) = libraries.communicator(method) {
            return Ok(Err(reason.clone()));
        }
        let kind = match method {
            Method::Nccl => MemoryKind::Plain,
            Method::NcclWindow => MemoryKind::Window,
            Method::Ours(_) if around.is_some() => MemoryKind::Plain,
            Method::Ours(Variant::Multimem | Variant::MulticastCopy) => MemoryKind::Multicast,
            Method::Ours(_) => MemoryKind::Symmetric,
        };
        let call = match arena.placed(kind, call)? {
            Ok(call) => call,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Method::Ours(variant) = method
            && let Err(reason) = if_available(libraries.ours.validate(&call, variant))?
        {
            return Ok(Err(reason));
        }
        Ok(Ok(Self {
            call,
            arena: arena.clone(),
            method,
            bytes: bytes_of(&call, libraries.session.world()),
            around,
            graph: None,
        }))
    }

    pub fn session(&self) -> &'a Session<B> {
        self.arena.libraries.session
    }

    fn enqueue(&self) -> Result<()> {
        match &self.around {
            Some(around) => around.enqueue(self),
            None => self.enqueue_call(),
        }
    }

    /// The call alone, without what is around it.
    pub fn enqueue_call(&self) -> Result<()> {
        let (session, call) = (self.session(), &self.call);
        let stream = &session.stream;
        if let Method::Ours(variant) = self.method {
            // SAFETY: the operands have these bytes and outlive the candidate; all ranks make the same calls
            // in the same order, on the session's stream alone.
            return unsafe { Ok(self.arena.libraries.ours.enqueue(stream, call, variant)?) };
        }
        match self.arena.libraries.communicator(self.method) {
            // SAFETY: as above; the operands are all plain, or all in windows, as the method asks.
            Some(Ok(comm)) => unsafe { session.backend.enqueue_nccl(comm, stream, call) },
            _ => Err(BenchError::Usage("there is no NCCL".into())),
        }
    }
}

impl<B: NcclBackend> Candidate for Row<'_, B> {
    fn name(&self) -> &str {
        let around = self.around.as_ref();
        around.map_or(self.method.name(), |around| around.name())
    }

    fn metrics(&self) -> &'static [Metric] {
        match self.graph {
            Some(_) => &Metric::ALL,
            None => &[Metric::Single, Metric::BackToBack],
        }
    }

    fn first_call(&mut self) -> Result<Option<String>> {
        self.load(Set::reals(0))?;
        self.enqueue()?;
        self.synchronize()?;
        let session = self.session();
        match session.backend.capture(&session.stream, || self.enqueue()) {
            Ok(graph) => {
                self.graph = Some(graph);
                Ok(None)
            }
            Err(error) if error.blames_a_peer() => Err(error),
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn drop_graph(&mut self) {
        self.graph = None;
    }

    fn load(&self, set: Set) -> Result<()> {
        let session = self.session();
        let (from, to) = (self.arena.set(set.index), self.call.input.address());
        let (backend, stream, from) = (&session.backend, &session.stream, from.address());
        // SAFETY: the input has these bytes and the sets no fewer; a call ends when its input may be changed.
        unsafe { backend.copy(stream, to, from, self.bytes[0])? };
        Ok(())
    }

    fn call(&self, form: Form) -> Result<()> {
        let session = self.session();
        session.before_call()?;
        match (form, &self.graph) {
            (Form::Replay, Some(graph)) => {
                // SAFETY: the memory and what does the call are borrowed for as long as this candidate lives.
                let launched = unsafe { session.backend.launch_graph(graph, &session.stream) };
                Ok(launched?)
            }
            _ => self.enqueue(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        let (session, stream) = (self.session(), &self.session().stream);
        if let Some(Ok(comm)) = self.arena.libraries.communicator(self.method) {
            session.backend.drain_group(stream, comm)?;
            session.backend.check_group(stream, comm)?;
        }
        let ended = session.backend.synchronize(stream);
        // The fault tells more than a stream that did not end.
        self.arena.libraries.ours.check(stream)?;
        Ok(ended?)
    }

    fn outputs(&self) -> Result<Vec<Output>> {
        let around = self.around.as_ref();
        if let Some(outputs) = around.and_then(|around| around.outputs(&self.call)) {
            return Ok(outputs);
        }
        let output = self.call.output.address();
        let pieces = (0..self.bytes[1]).step_by(PIECE);
        let piece = |at: usize| Output {
            address: output.add(at),
            bytes: (self.bytes[1] - at).min(PIECE),
            element: self.call.dtype.size(),
        };
        Ok(pieces.map(piece).collect())
    }

    fn compare(&self, piece: usize, set: Set, got: &[u8]) -> (Comparison, f64) {
        let (session, call) = (self.session(), &self.call);
        let place = (session.rank(), session.world());
        let set = set.index % SETS;
        let around = self.around.as_ref();
        let compared = around.and_then(|around| around.compare(session, piece, set, got));
        if let Some(comparison) = compared {
            return (comparison, 0.0);
        }
        let first = piece * PIECE / call.dtype.size();
        let expected = Expected::of(call, place, set);
        // Of small outputs, which many calls must have, all bytes are kept.
        if self.bytes[1] <= KEPT {
            let mut kept = self.arena.kept.borrow_mut();
            let right = kept.entry((call.operation.name(), set));
            if right.or_insert_with(|| expected.bytes()) == got {
                let elements = (got.len() / call.dtype.size()) as u64;
                return (Comparison::right(elements), 0.0);
            }
        }
        (expected.compare(first, got, session.threads()), 0.0)
    }
}

/// The row of a message in bf16 with memory of its own: by NCCL, or by the variant that the library selects.
/// `Err` says why it cannot run here. Collective.
pub fn alone<'a, B: NcclBackend>(
    session: &'a Session<B>,
    operation: Operation,
    bytes: usize,
    by_nccl: bool,
) -> Result<Result<impl Candidate + 'a, String>> {
    let call = call_of(operation, DType::Bf16, bytes, session.world());
    let wanted = if by_nccl { "nccl" } else { "select" };
    let libraries = Rc::new(Libraries::new(session, bytes, &[wanted.into()])?);
    let bytes = bytes_of(&call, session.world());
    let arena = Rc::new(Arena::new(&libraries, bytes, call.dtype, false)?);
    let method = match by_nccl {
        true => Method::Nccl,
        false => match arena.select(call)? {
            Some(variant) => Method::Ours(variant),
            None => return Ok(Err("no variant can run".into())),
        },
    };
    Row::new(&arena, method, call, None)
}
