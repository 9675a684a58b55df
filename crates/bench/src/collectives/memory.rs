//! The memory of one size: inputs and outputs of every kind of row, and the sets of numbers that go in.

use std::sync::Arc;

use warpweave_comm::collective::Operand;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{DType, Exchange, Memory, Support, SymmetricBuffer};

use super::nccl::NcclBackend;
use super::numbers::Stream;
use crate::candidate::first_reason;
use crate::error::Result;
use crate::session::Session;

/// Input sets: calls that follow each other have different inputs.
pub(super) const SETS: usize = 3;

/// Where operands come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory that peers map.
    Symmetric,
    /// The same, with a multicast address too.
    Multicast,
    /// Memory of this rank alone.
    Plain,
    /// NCCL's windows.
    Window,
}

/// Input and output of each kind, and the input sets.
pub(super) struct Arena<B: NcclBackend> {
    symmetric: [SymmetricBuffer<B>; 2],
    multicast: Result<[MulticastBuffer<B>; 2], String>,
    plain: Option<[B::Memory; 2]>,
    windows: Option<[B::Window; 2]>,
    sets: Vec<B::Memory>,
    bytes: [usize; 2],
}

impl<B: NcclBackend> Arena<B> {
    /// Allocates an input and an output of `bytes`, in plain memory too where `plain` is set, and fills the
    /// input sets. Collective.
    pub fn new(session: &Session<B>, bytes: [usize; 2], dtype: DType, plain: bool) -> Result<Self> {
        let (backend, exchange): (_, &Arc<dyn Exchange>) = (&session.backend, &session.exchange);
        let shared = |name, bytes| SymmetricBuffer::new(backend, exchange, name, bytes);
        let symmetric = [
            shared("bench.input", bytes[0])?,
            shared("bench.output", bytes[1])?,
        ];
        let local = || {
            let plain: Option<Result<_>> =
                plain.then(|| Ok([backend.allocate(bytes[0])?, backend.allocate(bytes[1])?]));
            let sets = (0..SETS).map(|set| {
                let stream = Stream::new(session.rank(), set, session.world());
                let numbers = stream.bytes(dtype, bytes[0] / dtype.size(), session.threads());
                let memory = backend.allocate(bytes[0])?;
                // SAFETY: the memory was just allocated, is as long, and nothing else knows it.
                unsafe { backend.upload(&session.stream, memory.address(), &numbers)? };
                Ok(memory)
            });
            Ok((plain.transpose()?, sets.collect::<Result<Vec<_>>>()?))
        };
        let local: Result<_> = local();
        let (failure, local) = match local {
            Ok(local) => (Ok(Vec::new()), Some(local)),
            Err(error) => (Err(error), None),
        };
        session.agree("memory for the inputs", failure)?;
        let (plain, sets) = local.unwrap_or_default();
        Ok(Self {
            multicast: multicast(session, &symmetric)?,
            symmetric,
            plain,
            windows: None,
            sets,
            bytes,
        })
    }

    /// Adds windows of `comm`. Collective.
    pub fn open_windows(&mut self, session: &Session<B>, comm: &B::Comm) -> Result<()> {
        let open = |bytes| {
            let exchange = session.exchange.as_ref();
            session.backend.open_window(comm, exchange, bytes)
        };
        self.windows = Some([open(self.bytes[0])?, open(self.bytes[1])?]);
        Ok(())
    }

    /// Input and output of these many bytes in `place`; `None` where there is no such memory.
    pub fn operands(&self, place: Place, bytes: [usize; 2]) -> Result<Option<[Operand; 2]>> {
        let [input, output] = &self.symmetric;
        let (a, b) = match (place, &self.plain, &self.windows) {
            (Place::Symmetric, ..) => (
                Operand::symmetric(input, 0, bytes[0])?,
                Operand::symmetric(output, 0, bytes[1])?,
            ),
            (Place::Multicast, ..) => {
                let Ok([of_input, of_output]) = &self.multicast else {
                    return Ok(None);
                };
                (
                    Operand::multicast(input, of_input, 0, bytes[0])?,
                    Operand::multicast(output, of_output, 0, bytes[1])?,
                )
            }
            (Place::Plain, Some([input, output]), _) => (
                Operand::local(input.address()),
                Operand::local(output.address()),
            ),
            (Place::Window, _, Some([input, output])) => (
                Operand::local(B::window_address(input)),
                Operand::local(B::window_address(output)),
            ),
            _ => return Ok(None),
        };
        Ok(Some([a, b]))
    }

    /// Why there is no memory of a kind.
    pub fn lacks(&self, place: Place) -> String {
        match (place, &self.multicast) {
            (Place::Multicast, Err(reason)) => reason.clone(),
            _ => "there is no NCCL".into(),
        }
    }

    /// The numbers of a set, counted round and round.
    pub fn set(&self, set: usize) -> &B::Memory {
        &self.sets[set % self.sets.len()]
    }

    /// Frees everything once all ranks have come here, with their work ended. Collective.
    pub fn close(self, session: &Session<B>) -> Result<()> {
        let exchange = session.exchange.as_ref();
        for window in self.windows.into_iter().flatten() {
            session.backend.close_window(window, exchange)?;
        }
        for multicast in self.multicast.into_iter().flatten() {
            multicast.close(exchange)?;
        }
        for buffer in self.symmetric {
            buffer.close(exchange)?;
        }
        Ok(())
    }
}

/// Multicast objects of the buffers, or why there are none on some rank. Collective.
fn multicast<B: NcclBackend>(
    session: &Session<B>,
    buffers: &[SymmetricBuffer<B>; 2],
) -> Result<Result<[MulticastBuffer<B>; 2], String>> {
    let mine = match &session.backend.device().multicast {
        _ if session.world() == 1 => "there is one rank alone".into(),
        Support::Yes => String::new(),
        Support::No(why) => why.clone(),
    };
    let all = session.agree("multicast of all ranks", Ok(mine.into_bytes()))?;
    if let Some(reason) = first_reason(&all) {
        return Ok(Err(reason));
    }
    let made = |buffer| MulticastBuffer::new(&session.backend, &session.exchange, buffer);
    Ok(Ok([made(&buffers[0])?, made(&buffers[1])?]))
}
