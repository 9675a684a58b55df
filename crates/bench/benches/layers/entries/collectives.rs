//! Each collective, by the variant that the library chooses and by NCCL.

use std::rc::Rc;

use warpweave_bench::Result;
use warpweave_bench::clock::Clock;
use warpweave_bench::collectives::{DEFAULT_OPERATIONS, NcclBackend};
use warpweave_bench::session::Session;
use warpweave_bench::size::Bytes;
use warpweave_comm::Collectives;
use warpweave_comm::collective::{Call, CollectiveOptions, Operand, Operation};
use warpweave_symm_mem::{DType, SymmetricBuffer};

use super::{end, sizes};
use crate::lockstep::{Entry, Made};
use crate::timed::{Enqueued, on_device};

pub fn entries<'a, B: NcclBackend>(session: &'a Session<B>, clock: &'a Clock<B>) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for operation in DEFAULT_OPERATIONS {
        for bytes in sizes::<B>() {
            let mut entry = |by: &str, make: Box<dyn Fn() -> Made<'a> + 'a>| {
                entries.push(Entry {
                    group: format!("collective/{operation}"),
                    name: format!("{by}/{}", Bytes(bytes)),
                    long: false,
                    make,
                });
            };
            entry(
                "select",
                Box::new(move || ours(session, clock, operation, bytes)),
            );
            entry(
                "nccl",
                Box::new(move || nccl(session, clock, operation, bytes)),
            );
        }
    }
    entries
}

/// A call on symmetric memory, with the memory.
struct Operands<B: NcclBackend> {
    call: Call,
    _memory: [SymmetricBuffer<B>; 2],
}

impl<B: NcclBackend> Operands<B> {
    /// Of a rank that brings `bytes`.
    fn new(session: &Session<B>, operation: Operation, bytes: usize) -> Result<Self> {
        let (dtype, world) = (DType::Bf16, session.world());
        let count = match operation {
            Operation::ReduceScatter | Operation::AllToAll => bytes / dtype.size() / world,
            _ => bytes / dtype.size(),
        };
        let buffer = |name, elements| {
            SymmetricBuffer::new(
                &session.backend,
                &session.exchange,
                name,
                elements * dtype.size(),
            )
        };
        let (input, output) = operation.elements(count, world);
        let memory = [buffer("input", input)?, buffer("output", output)?];
        let operand = |at: usize| Operand::symmetric(&memory[at], 0, memory[at].bytes());
        let call = Call {
            operation,
            dtype,
            count,
            root: 0,
            input: operand(0)?,
            output: operand(1)?,
        };
        Ok(Self {
            call,
            _memory: memory,
        })
    }

    /// The call. A closure that asks for it here holds the memory too, and not the field alone.
    fn call(&self) -> &Call {
        &self.call
    }
}

fn ours<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<B>,
    operation: Operation,
    bytes: usize,
) -> Made<'a> {
    let options = CollectiveOptions {
        staging_bytes: bytes + 4096,
        ..CollectiveOptions::default()
    };
    let ours = Collectives::new(&session.backend, &session.exchange, "bench", options)?;
    let operands = Operands::new(session, operation, bytes)?;
    let variant = ours.select(operands.call())?;
    let ours = Rc::new(ours);
    let looked_at = ours.clone();
    let calls = Enqueued {
        name: operation.name(),
        enqueue: Box::new(move || {
            // SAFETY: the operands have the elements of the call and live as long as this closure, whose
            // owner synchronises the stream after its calls; all ranks make the same calls in the same order,
            // on the session's stream alone.
            unsafe { Ok(ours.enqueue(&session.stream, operands.call(), variant)?) }
        }),
        end: Box::new(move || end(session, || Ok(looked_at.check(&session.stream)?))),
    };
    Ok(Ok(on_device(session, clock, calls)))
}

fn nccl<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<B>,
    operation: Operation,
    bytes: usize,
) -> Made<'a> {
    let Session {
        backend,
        exchange,
        stream,
        ..
    } = session;
    let comm = Rc::new(backend.nccl(exchange)?);
    let drained = comm.clone();
    let operands = Operands::new(session, operation, bytes)?;
    let calls = Enqueued {
        name: operation.name(),
        enqueue: Box::new(move || {
            // SAFETY: as above; the operands lie in no window.
            unsafe { backend.enqueue_nccl(&comm, stream, operands.call()) }
        }),
        end: Box::new(move || backend.drain_nccl(&drained, stream)),
    };
    Ok(Ok(on_device(session, clock, calls)))
}
