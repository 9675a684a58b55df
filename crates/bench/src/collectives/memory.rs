//! The memory of one size: inputs and outputs for every kind of row, and the input sets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use warpweave_comm::collective::{Call, Operand, Variant};
use warpweave_comm::nccl::NcclWindow;
use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{DType, DevicePtr, Exchange, Memory, Support, SymmetricBuffer};

use super::method::Libraries;
use super::nccl::NcclBackend;
use super::numbers::Input;
use super::operation::bytes_of;
use crate::error::{Result, if_available};
use crate::session::Session;

/// Input sets: calls that follow each other have different inputs.
pub(super) const SETS: usize = 3;

const NO_NCCL: &str = "there is no NCCL";

/// The memory that operands are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
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
pub(super) struct Arena<'a, B: NcclBackend> {
    pub libraries: Rc<Libraries<'a, B>>,
    symmetric: [SymmetricBuffer<B>; 2],
    multicast: Result<[MulticastBuffer<B>; 2], String>,
    plain: Option<[B::Memory; 2]>,
    windows: Result<[NcclWindow; 2], String>,
    sets: Vec<B::Memory>,
    /// The expected outputs, by operation and set.
    pub(super) kept: RefCell<BTreeMap<(&'static str, usize), Vec<u8>>>,
}

impl<'a, B: NcclBackend> Arena<'a, B> {
    /// Allocates an input and an output of up to these many bytes for every kind of row, and fills the input
    /// sets; `ours_is_local` says that ours take plain memory too. Collective.
    pub fn new(
        libraries: &Rc<Libraries<'a, B>>,
        bytes: [usize; 2],
        dtype: DType,
        ours_is_local: bool,
    ) -> Result<Self> {
        let (session, [plain, windows]) = (libraries.session, &libraries.nccl);
        let plain = ours_is_local || plain.is_ok();
        let (backend, exchange): (_, &Arc<dyn Exchange>) = (&session.backend, &session.exchange);
        let shared = |name, bytes| SymmetricBuffer::new(backend, exchange, name, bytes);
        let symmetric = [
            shared("bench.input", bytes[0])?,
            shared("bench.output", bytes[1])?,
        ];
        let local = || {
            let plain = match plain {
                true => Some([backend.allocate(bytes[0])?, backend.allocate(bytes[1])?]),
                false => None,
            };
            let sets = (0..SETS).map(|set| {
                let input = Input::new(session.rank(), set, session.world());
                let count = bytes[0] / dtype.size();
                session.upload(&input.bytes(dtype, count, session.threads()))
            });
            Ok((plain, sets.collect::<Result<Vec<_>>>()?))
        };
        let (plain, sets) = session.on_all("memory for the inputs", local())?;
        Ok(Self {
            libraries: libraries.clone(),
            multicast: multicast(session, &symmetric)?,
            symmetric,
            plain,
            windows: match windows {
                Ok(comm) => open_windows(session, comm, bytes)?,
                Err(reason) => Err(reason.clone()),
            },
            sets,
            kept: RefCell::default(),
        })
    }

    /// `call` with its operands in memory of this kind, or why there is no such memory.
    pub fn placed(&self, kind: MemoryKind, call: Call) -> Result<Result<Call, String>> {
        let [input, output] = &self.symmetric;
        let bytes = bytes_of(&call, input.world());
        let operands = match kind {
            MemoryKind::Symmetric => Ok([
                Operand::symmetric(input, 0, bytes[0])?,
                Operand::symmetric(output, 0, bytes[1])?,
            ]),
            MemoryKind::Multicast => match &self.multicast {
                Ok([of_input, of_output]) => Ok([
                    Operand::multicast(input, of_input, 0, bytes[0])?,
                    Operand::multicast(output, of_output, 0, bytes[1])?,
                ]),
                Err(reason) => Err(reason.clone()),
            },
            MemoryKind::Plain => match &self.plain {
                Some(memory) => Ok(memory.each_ref().map(|m| Operand::local(m.address()))),
                None => Err(NO_NCCL.into()),
            },
            MemoryKind::Window => match &self.windows {
                Ok(all) => Ok(all
                    .each_ref()
                    .map(|w| Operand::local(DevicePtr(w.address())))),
                Err(reason) => Err(reason.clone()),
            },
        };
        Ok(operands.map(|[input, output]| Call {
            input,
            output,
            ..call
        }))
    }

    /// The variant that the library chooses for `call`, with multicast addresses where there are any.
    pub fn select(&self, call: Call) -> Result<Option<Variant>> {
        let placed = match self.placed(MemoryKind::Multicast, call)? {
            Err(_) => self.placed(MemoryKind::Symmetric, call)?,
            placed => placed,
        };
        Ok(match placed {
            Ok(call) => if_available(self.libraries.ours.select(&call))?.ok(),
            Err(_) => None,
        })
    }

    /// The elements of input set `set` modulo the number of sets.
    pub fn set(&self, set: usize) -> &B::Memory {
        &self.sets[set % self.sets.len()]
    }

    /// Frees everything once all ranks have come here, with their work ended. Collective.
    pub fn close(self) -> Result<()> {
        let session = self.libraries.session;
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

/// Windows of `comm`, or why some rank has none of this size. Collective.
fn open_windows<B: NcclBackend>(
    session: &Session<B>,
    comm: &B::Group,
    bytes: [usize; 2],
) -> Result<Result<[NcclWindow; 2], String>> {
    let (backend, exchange) = (&session.backend, session.exchange.as_ref());
    let open = |bytes| backend.open_window(comm, exchange, bytes);
    // A lost peer is found by the step that follows.
    let opened = open(bytes[0]).and_then(|input| Ok([input, open(bytes[1])?]));
    let mine = opened.map_err(|error| error.to_string());
    session.if_all_can("windows of NCCL", Ok(mine))
}

/// Multicast objects of the buffers, or why there are none on some rank. Collective.
fn multicast<B: NcclBackend>(
    session: &Session<B>,
    buffers: &[SymmetricBuffer<B>; 2],
) -> Result<Result<[MulticastBuffer<B>; 2], String>> {
    let mine = match &session.backend.device().multicast {
        _ if session.world() == 1 => Err("there is one rank alone".into()),
        Support::Yes => Ok(()),
        Support::No(why) => Err(why.clone()),
    };
    if let Err(reason) = session.if_all_can("multicast of all ranks", Ok(mine))? {
        return Ok(Err(reason));
    }
    let made = |buffer| MulticastBuffer::new(&session.backend, &session.exchange, buffer);
    Ok(Ok([made(&buffers[0])?, made(&buffers[1])?]))
}
