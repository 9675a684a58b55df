//! The [`Exchange`] of ranks that are processes: bytes through the job's store, descriptors through Unix
//! sockets.
//!
//! Descriptors do not cross hosts: [`LocalExchange::all_gather_fds`] passes them among the ranks of a node
//! that are on one host and in one network namespace. The first call that needs the sockets opens them:
//! abstract addresses with 128 random bits, both ends of the same user (`SO_PEERCRED`), and a greeting with a
//! secret that goes through the store.

mod link;
mod mesh;
mod pending;

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{Exchange, ExchangeError, LossWatcher, Nodes};

use crate::error::{CommError, Result, as_exchange_error};
use crate::store::Store;
use mesh::Mesh;

/// How much later than a socket the store may learn of a loss, or one rank than another of a deadline.
const A_MOMENT: Duration = Duration::from_millis(200);

/// Most descriptors that a rank may pass in one call.
pub const MOST_DESCRIPTORS: usize = 1024;

/// An [`Exchange`] among the ranks of a [`Store`].
///
/// Several may share a store. `scope` distinguishes them; all ranks pass the same.
///
/// After a call that timed out, the next one waits for 0.2 s only: deadlines do not add up.
pub struct LocalExchange {
    store: Arc<Store>,
    scope: String,
    /// Number of calls so far. Locked during a call, so that two threads of a rank cannot interleave their
    /// calls.
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    made: u64,
    mesh: Option<Mesh>,
    /// Whether the last wait for peers timed out. The next one lasts a moment only: a rank that stopped costs
    /// the others one deadline, whatever they call next.
    timed_out: bool,
}

impl Calls {
    /// Records how a wait for peers ended.
    fn record<T>(&mut self, outcome: Result<T>) -> Result<T> {
        self.timed_out = matches!(outcome, Err(CommError::Timeout { .. }));
        outcome
    }
}

/// The outcome of receiving on one rank.
#[derive(Serialize, Deserialize)]
enum Receipt {
    Complete,
    Missing { from: u32, expected: u32, got: u32 },
    Failed { why: String },
}

impl LocalExchange {
    /// An exchange over `store`. Opens nothing yet.
    pub fn new(store: Arc<Store>, scope: impl Into<String>) -> Self {
        Self {
            store,
            scope: scope.into(),
            calls: Mutex::default(),
        }
    }

    /// The store underneath.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// As [`Exchange::all_gather`], for a rank that knows that another may not arrive: see
    /// [`Store::gather_within`].
    ///
    /// # Errors
    /// As [`Exchange::all_gather`].
    pub fn all_gather_within(
        &self,
        tag: &str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let mut calls = self.calls.lock();
        self.gather_within(&mut calls, tag, bytes, timeout)
            .map_err(|e| as_exchange_error(e, tag))
    }

    /// The time that a call has after one that timed out.
    fn a_moment(&self) -> Duration {
        A_MOMENT.min(self.store.timeout())
    }

    fn gather(&self, calls: &mut Calls, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if calls.timed_out {
            return self.gather_within(calls, tag, bytes, self.a_moment());
        }
        calls.made += 1;
        let all = self.store.gather(&self.scope, calls.made, tag, bytes);
        calls.record(all)
    }

    /// Asks all ranks where they are, unless this one knows. Other calls may be under way on other threads.
    fn know_places(&self, tag: &str) -> Result<(), ExchangeError> {
        if self.store.knows_places() {
            return Ok(());
        }
        let within = self.calls.lock().timed_out.then(|| self.a_moment());
        let known = self.store.know_places(within);
        self.calls
            .lock()
            .record(known)
            .map_err(|e| as_exchange_error(e, tag))
    }

    fn gather_within(
        &self,
        calls: &mut Calls,
        tag: &str,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        calls.made += 1;
        let all = self
            .store
            .gather_within(&self.scope, calls.made, (tag, bytes), timeout);
        calls.record(all)
    }

    fn gather_fds(&self, tag: &str, fds: &[BorrowedFd<'_>]) -> Result<Vec<Vec<OwnedFd>>> {
        let mut calls = self.calls.lock();
        let counts = self.gather(&mut calls, tag, &(fds.len() as u64).to_le_bytes())?;
        let counts = counts
            .iter()
            .enumerate()
            .map(|(rank, bytes)| {
                match <[u8; 8]>::try_from(bytes.as_slice()).map(u64::from_le_bytes) {
                    Ok(count) if count <= MOST_DESCRIPTORS as u64 => Ok(count as usize),
                    Ok(count) => Err(CommError::TooLarge {
                        what: format!("number of descriptors of rank {rank} in `{tag}`"),
                        size: count as usize,
                        limit: MOST_DESCRIPTORS,
                    }),
                    Err(_) => Err(CommError::Mismatch {
                        rank: self.store.rank(),
                        mine: format!("{tag} (descriptors)"),
                        peer: rank,
                        theirs: format!("{tag} (bytes)"),
                    }),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        if self.store.world() > 1 && calls.mesh.is_none() {
            let mut gather = |tag: &str, bytes: &[u8], failed: Option<&CommError>| {
                // A peer that did not connect will not be here either: after a timeout this lasts a moment.
                calls.timed_out |= matches!(failed, Some(CommError::Timeout { .. }));
                self.gather(&mut calls, tag, bytes)
            };
            let mesh = Mesh::open(&self.store, &mut gather);
            calls.mesh = Some(calls.record(mesh)?);
        }
        let deadline = Instant::now() + self.store.timeout();
        let received = match &calls.mesh {
            Some(mesh) => mesh.transfer(&self.store, tag, fds, &counts, deadline),
            None => mesh::duplicate(tag, fds).map(|own| vec![own]),
        };
        let received = calls.record(received);
        self.agree_on_receipts(&mut calls, tag, received)
    }

    /// Makes the outcome the same on all ranks: what one rank did not receive fails the call on every rank.
    /// After a failure packets may be left in the sockets, so every rank opens fresh ones at the next call.
    fn agree_on_receipts(
        &self,
        calls: &mut Calls,
        tag: &str,
        received: Result<Vec<Vec<OwnedFd>>>,
    ) -> Result<Vec<Vec<OwnedFd>>> {
        // A lost rank cannot take part in another all-gather.
        if received.is_err() && self.store.failure().is_some() {
            calls.mesh = None;
            return received;
        }
        let receipt = match &received {
            Ok(_) => Receipt::Complete,
            Err(CommError::Exchange(ExchangeError::MissingDescriptor {
                rank,
                expected,
                got,
                ..
            })) => Receipt::Missing {
                from: *rank as u32,
                expected: *expected as u32,
                got: *got as u32,
            },
            Err(other) => Receipt::Failed { why: reason(other) },
        };
        let bytes = postcard::to_stdvec(&receipt).map_err(|e| CommError::Protocol {
            what: format!("encoding a receipt: {e}"),
        })?;
        let name = format!("{tag} (receipts)");
        // A peer that did not send will not be here either: after a timeout this lasts a moment.
        let receipts = self.gather(calls, &name, &bytes);
        let (received, receipts) = match (received, receipts) {
            (Ok(received), Ok(receipts)) => (received, receipts),
            (Err(e), _) | (Ok(_), Err(e)) => {
                calls.mesh = None;
                // The store may learn of a loss after a socket.
                self.store.check(tag)?;
                return Err(e);
            }
        };
        for (rank, bytes) in receipts.iter().enumerate() {
            let failed = match postcard::from_bytes(bytes) {
                Ok(Receipt::Complete) => continue,
                Ok(Receipt::Missing {
                    from,
                    expected,
                    got,
                }) => CommError::Exchange(ExchangeError::MissingDescriptor {
                    rank: from as usize,
                    tag: format!("{tag} (seen by rank {rank})"),
                    expected: expected as usize,
                    got: got as usize,
                }),
                Ok(Receipt::Failed { why }) => CommError::PeerFailed {
                    rank: self.store.rank(),
                    peer: rank,
                    what: tag.into(),
                    cause: why,
                    unavailable: false,
                },
                Err(_) => CommError::Protocol {
                    what: format!("rank {rank} sent no receipt for `{tag}`"),
                },
            };
            calls.mesh = None;
            return Err(failed);
        }
        Ok(received)
    }
}

/// What the other ranks are told of an error of this one.
fn reason(error: &CommError) -> String {
    error.to_string().chars().take(512).collect()
}

impl Exchange for LocalExchange {
    fn rank(&self) -> usize {
        self.store.rank()
    }

    fn world(&self) -> usize {
        self.store.world()
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let mut calls = self.calls.lock();
        self.gather(&mut calls, tag, bytes)
            .map_err(|e| as_exchange_error(e, tag))
    }

    /// Collective until it has succeeded.
    fn nodes(&self) -> Result<Nodes, ExchangeError> {
        self.know_places("nodes")?;
        let nodes = self.store.nodes();
        nodes.map_err(|e| as_exchange_error(e, "nodes"))
    }

    /// Collective until it has succeeded.
    fn addresses(&self) -> Result<Vec<IpAddr>, ExchangeError> {
        self.know_places("addresses")?;
        let addresses = self.store.addresses();
        addresses.map_err(|e| as_exchange_error(e, "addresses"))
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        self.gather_fds(tag, fds)
            .map_err(|e| as_exchange_error(e, tag))
    }

    fn note_timeout(&self) {
        self.calls.lock().timed_out = true;
    }

    fn mark(&self, name: &str, leave: bool) -> Result<Option<usize>, ExchangeError> {
        let first = self.store.mark(&format!("{}.{name}", self.scope), leave);
        first.map_err(|e| as_exchange_error(e, name))
    }

    fn watch(&self, watcher: LossWatcher) {
        self.store.watch(watcher);
    }
}

/// Decodes `bytes` as each message of the exchange, for fuzzing.
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_all(bytes: &[u8]) {
    mesh::decode_all(bytes);
    let receipt = postcard::from_bytes::<Receipt>(bytes);
    if let Ok(receipt) = receipt {
        postcard::to_stdvec(&receipt).expect("what was read can be written");
    }
}

/// One message of each kind, for the corpus.
#[cfg(test)]
pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let receipt = Receipt::Missing {
        from: 1,
        expected: 100,
        got: 3,
    };
    let mut samples = mesh::samples();
    let bytes = postcard::to_stdvec(&receipt).expect("a small message");
    samples.push(("packets/receipt", bytes));
    samples
}

#[cfg(test)]
mod tests;
