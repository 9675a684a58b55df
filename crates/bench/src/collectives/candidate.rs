//! A call by a method, ready to be enqueued and replayed.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{Call as Collective, Variant};
use warpweave_symm_mem::Memory;

use super::expected::Expected;
use super::memory::{Arena, Place};
use super::method::Method;
use super::nccl::NcclBackend;
use crate::candidate::{Call, Candidate, Measures, Output, Set};
use crate::error::{BenchError, Result};
use crate::inputs::Numbers;
use crate::session::Session;
use crate::verification::comparison::Comparison;

/// Bytes that are downloaded and compared at once.
const PIECE: usize = 64 << 20;

/// What every row is made from.
pub(super) struct Means<'a, B: NcclBackend> {
    pub session: &'a Session<B>,
    pub ours: &'a Collectives<B>,
    /// Plain NCCL's communicator, and that of the windows.
    pub nccl: [Option<&'a B::Comm>; 2],
    pub arena: &'a Arena<B>,
}

/// A row that can run here.
pub(super) struct Row<'a, B: NcclBackend> {
    call: Collective,
    means: &'a Means<'a, B>,
    method: Method,
    bytes: [usize; 2],
    graph: Option<B::Graph>,
}

impl<'a, B: NcclBackend> Row<'a, B> {
    /// `call` by `method`, with operands of `bytes` in the memory that it takes. `Err` says why it cannot run
    /// here.
    pub fn new(
        means: &'a Means<'a, B>,
        method: Method,
        mut call: Collective,
        bytes: [usize; 2],
    ) -> Result<Result<Self, String>> {
        let place = match method {
            Method::Nccl => Place::Plain,
            Method::NcclWindow => Place::Window,
            Method::Ours(Variant::Multimem | Variant::MulticastCopy) => Place::Multicast,
            Method::Ours(_) => Place::Symmetric,
        };
        let Some([input, output]) = means.arena.operands(place, bytes)? else {
            return Ok(Err(means.arena.lacks(place)));
        };
        (call.input, call.output) = (input, output);
        if let Method::Ours(variant) = method {
            match means.ours.validate(&call, variant) {
                Err(error) if error.is_unavailable() => return Ok(Err(error.to_string())),
                other => other?,
            }
        }
        Ok(Ok(Self {
            call,
            means,
            method,
            bytes,
            graph: None,
        }))
    }

    fn enqueue(&self) -> Result<()> {
        let Means {
            session,
            ours,
            nccl: [plain, windows],
            ..
        } = self.means;
        let stream = &session.stream;
        let by_nccl = |comm: &Option<&B::Comm>| match comm {
            // SAFETY: as below; the operands are all plain, or all in windows, as the method asks.
            Some(comm) => unsafe { session.backend.enqueue_nccl(comm, stream, &self.call) },
            None => Err(BenchError::Usage("there is no NCCL".into())),
        };
        match self.method {
            Method::Nccl => by_nccl(plain),
            Method::NcclWindow => by_nccl(windows),
            // SAFETY: the operands have these bytes and outlive the candidate; all ranks make the same calls
            // in the same order, on the session's stream alone.
            Method::Ours(variant) => unsafe { Ok(ours.enqueue(stream, &self.call, variant)?) },
        }
    }
}

impl<B: NcclBackend> Candidate for Row<'_, B> {
    fn name(&self) -> &str {
        self.method.name()
    }

    fn measures(&self) -> Measures {
        let has_graph = self.graph.is_some();
        Measures {
            back_to_back: true,
            single_replays: has_graph,
            replays_back_to_back: has_graph,
        }
    }

    fn first_call(&mut self) -> Result<Option<String>> {
        self.load(Set {
            numbers: Numbers::Integers,
            index: 0,
        })?;
        self.enqueue()?;
        self.synchronize()?;
        let session = self.means.session;
        let mut failed = None;
        let captured = session.backend.capture(&session.stream, || {
            self.enqueue().map_err(|error| {
                let cause = error.to_string();
                failed = Some(error);
                warpweave_symm_mem::Error::Stream {
                    device: "capture".into(),
                    cause,
                }
            })
        });
        match (captured, failed) {
            (Ok(graph), _) => {
                self.graph = Some(graph);
                Ok(None)
            }
            (_, Some(error)) if error.blames_a_peer() => Err(error),
            (_, Some(error)) => Ok(Some(error.to_string())),
            (Err(error), None) => Ok(Some(error.to_string())),
        }
    }

    fn drop_graph(&mut self) {
        self.graph = None;
    }

    fn load(&self, set: Set) -> Result<()> {
        let session = self.means.session;
        let (from, to) = (self.means.arena.set(set.index), self.call.input.address());
        let (backend, stream, from) = (&session.backend, &session.stream, from.address());
        // SAFETY: the input has these bytes and the sets no fewer; a call ends when its input may be changed.
        unsafe { backend.copy(stream, to, from, self.bytes[0])? };
        Ok(())
    }

    fn call(&self, how: Call) -> Result<()> {
        let session = self.means.session;
        session.before_call()?;
        match (how, &self.graph) {
            (Call::Replay, Some(graph)) => {
                // SAFETY: the memory and what does the call are borrowed for as long as this candidate lives.
                let launched = unsafe { session.backend.launch_graph(graph, &session.stream) };
                Ok(launched?)
            }
            _ => self.enqueue(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        let Means {
            session,
            ours,
            nccl: [plain, windows],
            ..
        } = self.means;
        let comm = match self.method {
            Method::Nccl => *plain,
            Method::NcclWindow => *windows,
            Method::Ours(_) => None,
        };
        if let Some(comm) = comm {
            session.backend.drain_nccl(comm, &session.stream)?;
        }
        let ended = session.backend.synchronize(&session.stream);
        // The fault tells more than a stream that did not end.
        ours.check(&session.stream)?;
        Ok(ended?)
    }

    fn outputs(&self) -> Result<Vec<Output>> {
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
        let (session, call) = (self.means.session, &self.call);
        let expected = Expected::of(call, (session.rank(), session.world()), set.index);
        let first = piece * PIECE / call.dtype.size();
        (expected.compare(first, got, session.threads()), 0.0)
    }
}
