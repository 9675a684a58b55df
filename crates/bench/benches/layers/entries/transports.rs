//! Get and put by each transport, around the ring of ranks: all links are busy in one direction.

use std::rc::Rc;

use warpweave_bench::Result;
use warpweave_bench::clock::Clock;
use warpweave_bench::collectives::NcclBackend;
use warpweave_bench::session::Session;
use warpweave_comm::p2p::{MemoryRange, Options, PointToPoint, TransferMethod};
use warpweave_report::Bytes;
use warpweave_symm_mem::SymmetricBuffer;

use super::{end, sizes};
use crate::lockstep::{Entry, Made};
use crate::timed::{Enqueued, on_device};

#[derive(Clone, Copy)]
enum Direction {
    Get,
    Put,
}

pub fn entries<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for transport in TransferMethod::ALL {
        for (direction, name) in [(Direction::Get, "get"), (Direction::Put, "put")] {
            for bytes in sizes::<B>() {
                entries.push(Entry {
                    group: "transport".into(),
                    name: format!("{transport}/{name}/{}", Bytes(bytes)),
                    long: false,
                    make: Box::new(move || transfer(session, clock, (transport, direction), bytes)),
                });
            }
        }
    }
    entries
}

fn transfer<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
    (transport, direction): (TransferMethod, Direction),
    bytes: usize,
) -> Made<'a> {
    let Session {
        backend,
        exchange,
        stream,
        ..
    } = session;
    let (rank, world) = (session.rank(), session.world());
    let (next, last) = ((rank + 1) % world, (rank + world - 1) % world);
    let ends = PointToPoint::new(backend, exchange, "bench", Options::default())?;
    if transport == TransferMethod::Nccl {
        backend.attach_nccl(&ends, exchange.as_ref())?;
    }
    let [to_next, to_last] = [next, last].map(|peer| ends.channel(peer, 0, transport));
    let (to_next, to_last) = (to_next?, to_last?);
    // What is sent, then where it arrives.
    let buffer = SymmetricBuffer::new(backend, exchange, "bench", 2 * bytes)?;
    let [sent, arriving] = [0, bytes].map(|at| move |of| (of, at));
    let range = |(of, at)| MemoryRange::of(&buffer, of, at, bytes);
    let (mine, into, from, there) = (
        range(sent(rank))?,
        range(arriving(rank))?,
        range(sent(next))?,
        range(arriving(next))?,
    );
    // By NCCL what is posted first holds up what follows it on the stream, so that two neighbours must not
    // both send first.
    let sends_first = match transport {
        TransferMethod::Nccl => rank.is_multiple_of(2),
        _ => matches!(direction, Direction::Get),
    };
    let ends = Rc::new(ends);
    let looked_at = ends.clone();
    let enqueue = move || -> Result<()> {
        // Both live as long as what is enqueued on them.
        let _alive = (&buffer, &ends);
        // SAFETY: the ranges lie in `buffer`, which lives as long as this closure, whose owner synchronises
        // the stream after its calls. What is sent and what arrives do not overlap, nothing else touches
        // them, all transfers of a rank are on one stream, and all ranks post the same ones of the same
        // length.
        let tokens = unsafe {
            let send = || match direction {
                Direction::Get => to_last.expose(stream, mine),
                Direction::Put => to_next.put(stream, mine, there),
            };
            let receive = || match direction {
                Direction::Get => to_next.get(stream, from, into),
                Direction::Put => to_last.accept(stream, into),
            };
            match sends_first {
                true => [send()?, receive()?],
                false => [receive()?, send()?],
            }
        };
        tokens
            .into_iter()
            .try_for_each(|token| token.wait(stream))?;
        Ok(())
    };
    let transfer = Enqueued {
        name: transport.name(),
        enqueue: Box::new(enqueue),
        end: Box::new(move || end(session, || Ok(looked_at.check(stream)?))),
    };
    Ok(Ok(on_device(clock, transfer)))
}
