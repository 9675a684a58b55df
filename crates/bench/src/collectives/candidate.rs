//! One row on this rank: a call by a method, ready to be enqueued and replayed.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{Call as Collective, Variant};
use warpweave_symm_mem::Memory;

use super::memory::{Arena, Place};
use super::method::Method;
use super::nccl::NcclBackend;
use crate::error::{BenchError, Result};
use crate::session::Session;
use crate::timing::{Call, Contender, Measures};

/// What every row is made from.
pub(super) struct Means<'a, B: NcclBackend> {
    pub session: &'a Session<B>,
    pub ours: &'a Collectives<B>,
    /// Plain NCCL's communicator, and that of the windows.
    pub nccl: [Option<&'a B::Comm>; 2],
    pub arena: &'a Arena<B>,
}

/// A row that can run here.
pub(super) struct Candidate<'a, B: NcclBackend> {
    pub name: String,
    pub call: Collective,
    means: &'a Means<'a, B>,
    method: Method,
    bytes: [usize; 2],
    graph: Option<B::Graph>,
}

impl<'a, B: NcclBackend> Candidate<'a, B> {
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
            name: method.name().into(),
            call,
            means,
            method,
            bytes,
            graph: None,
        }))
    }

    /// Makes the first call and captures another. Collective; what the device lacks is `Err` with the reason
    /// on all ranks, and without a graph only the columns of graphs stay empty, for which the reason is
    /// returned.
    pub fn warm_up(&mut self) -> Result<Result<Option<String>, String>> {
        let session = self.means.session;
        let mine = self
            .load(0)
            .and_then(|()| self.enqueue())
            .and_then(|()| self.synchronize());
        let mine = match mine {
            Err(error) if error.is_unavailable() => Ok(error.to_string().into_bytes()),
            other => other.map(|()| Vec::new()),
        };
        let all = session.agree(&format!("first call of {}", self.name), mine)?;
        if let Some(reason) = first_reason(&all) {
            return Ok(Err(reason));
        }
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
        let mine = match (captured, failed) {
            (Ok(graph), _) => {
                self.graph = Some(graph);
                Ok(Vec::new())
            }
            (_, Some(error)) if error.blames_a_peer() => Err(error),
            (_, Some(error)) => Ok(error.to_string().into_bytes()),
            (Err(error), None) => Ok(error.to_string().into_bytes()),
        };
        let all = session.agree(&format!("capture of {}", self.name), mine)?;
        let reason = first_reason(&all);
        if reason.is_some() {
            self.graph = None;
        }
        Ok(Ok(reason))
    }

    /// Whether calls can be replayed.
    pub fn has_graph(&self) -> bool {
        self.graph.is_some()
    }

    pub fn output_bytes(&self) -> usize {
        self.bytes[1]
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

/// The first reason that a rank gave.
pub(super) fn first_reason(all: &[Vec<u8>]) -> Option<String> {
    let reason = all.iter().find(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(reason).into_owned())
}

impl<B: NcclBackend> Contender for Candidate<'_, B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn measures(&self) -> Measures {
        Measures {
            back_to_back: true,
            single_replays: self.has_graph(),
            replays_back_to_back: self.has_graph(),
        }
    }

    fn prepare(&self) -> Result<()> {
        Ok(())
    }

    fn load(&self, set: usize) -> Result<()> {
        let session = self.means.session;
        let (from, to) = (self.means.arena.set(set), self.call.input.address());
        // SAFETY: the input has these bytes and the sets no fewer; a call ends when its input may be changed.
        unsafe {
            session
                .backend
                .copy(&session.stream, to, from.address(), self.bytes[0])?;
        }
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
}
