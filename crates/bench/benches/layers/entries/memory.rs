//! Symmetric memory: allocated and mapped anew and out of a pool, a user's memory registered anew and again,
//! signals.

use warpweave_bench::clock::Clock;
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_symm_mem::{IpcCache, Memory, SignalPad, SymmetricBuffer, SymmetricPool};

use super::end;
use crate::lockstep::{Entry, Made};
use crate::timed::{Enqueued, on_device, on_host};

/// Bytes of what is allocated and registered.
const BYTES: usize = 1 << 20;

pub fn entries<'a, B: ExecuteBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
) -> Vec<Entry<'a>> {
    let entry = |name: &str, make: Box<dyn Fn() -> Made<'a> + 'a>| Entry {
        group: "memory".into(),
        name: name.into(),
        long: name.ends_with("cold"),
        make,
    };
    vec![
        entry("allocate/cold", Box::new(|| allocate_cold(session))),
        entry("allocate/warm", Box::new(|| allocate_warm(session))),
        entry("register/cold", Box::new(|| register_cold(session))),
        entry("register/warm", Box::new(|| register_warm(session))),
        entry("signal", Box::new(|| signal(session, clock))),
    ]
}

/// A new buffer, mapped by all ranks, and its end.
fn allocate_cold<B: ExecuteBackend>(session: &Session<B>) -> Made<'_> {
    let Session {
        backend, exchange, ..
    } = session;
    Ok(Ok(on_host(session, move || {
        let buffer = SymmetricBuffer::new(backend, exchange, "bench", BYTES)?;
        Ok(buffer.close(exchange.as_ref())?)
    })))
}

/// A block that the pool has, and its return.
fn allocate_warm<B: ExecuteBackend>(session: &Session<B>) -> Made<'_> {
    let pool = SymmetricPool::new(&session.backend, "bench");
    Ok(Ok(on_host(session, move || {
        drop(pool.allocate(&session.exchange, &session.stream, BYTES)?);
        Ok(())
    })))
}

/// Memory whose handles the ranks exchange and open, and close again.
fn register_cold<B: ExecuteBackend>(session: &Session<B>) -> Made<'_> {
    let memory = session.backend.allocate(BYTES)?;
    let cache = IpcCache::new(&session.backend)?;
    let exchange = session.exchange.as_ref();
    Ok(Ok(on_host(session, move || {
        let registration = cache.register(exchange, memory.address(), BYTES)?;
        Ok(cache.release(exchange, registration)?)
    })))
}

/// Memory that the cache knows.
fn register_warm<B: ExecuteBackend>(session: &Session<B>) -> Made<'_> {
    let memory = session.backend.allocate(BYTES)?;
    let cache = IpcCache::new(&session.backend)?;
    Ok(Ok(on_host(session, move || {
        drop(cache.register(session.exchange.as_ref(), memory.address(), BYTES)?);
        Ok(())
    })))
}

/// A signal to every other rank, and the wait for theirs.
fn signal<'a, B: ExecuteBackend>(session: &'a Session<B>, clock: &'a Clock<'a, B>) -> Made<'a> {
    let pad = SignalPad::new(&session.backend, &session.exchange, "bench", 1)?;
    let pad = std::rc::Rc::new(pad);
    let (looked_at, peers) = (pad.clone(), session.peers());
    let signal = Enqueued {
        name: "signal",
        enqueue: Box::new(move || {
            pad.signal(&session.stream, 0, &peers)?;
            Ok(pad.wait(&session.stream, 0, &peers, 0)?)
        }),
        end: Box::new(move || end(session, || Ok(looked_at.check(&session.stream)?))),
    };
    Ok(Ok(on_device(clock, signal)))
}
