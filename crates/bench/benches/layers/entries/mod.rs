//! The benchmarks, a file for each layer from the bottom to the top.

mod collectives;
mod exchange;
mod memory;
mod plans;
mod transports;

use warpweave_bench::Result;
use warpweave_bench::clock::Clock;
use warpweave_bench::collectives::NcclBackend;
use warpweave_bench::session::{ExecuteBackend, Session};
use warpweave_symm_mem::BackendKind;

use crate::lockstep::Entry;

/// All of them, the same on all ranks.
///
/// # Errors
/// A suite has nothing to measure.
pub fn all<'a, B: NcclBackend>(
    session: &'a Session<B>,
    clock: &'a Clock<'a, B>,
) -> Result<Vec<Entry<'a>>> {
    let mut entries = memory::entries(session, clock);
    entries.extend(exchange::entries(session));
    entries.extend(transports::entries(session, clock));
    entries.extend(collectives::entries(session, clock));
    entries.extend(plans::entries(session, clock)?);
    Ok(entries)
}

/// A message for which only its start counts, and one for which that counts for little.
fn sizes<B: ExecuteBackend>() -> [usize; 2] {
    match B::KIND {
        BackendKind::Cuda => [4 << 10, 16 << 20],
        BackendKind::Host => [4 << 10, 1 << 20],
    }
}

/// Waits until the session's stream is empty, then looks for a fault, which tells more than a stream that did
/// not end.
fn end<B: ExecuteBackend>(session: &Session<B>, check: impl FnOnce() -> Result<()>) -> Result<()> {
    let ended = session.backend.synchronize(&session.stream);
    check()?;
    Ok(ended?)
}
