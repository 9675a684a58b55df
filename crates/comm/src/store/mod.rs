//! The job's store: a small key-value server on rank 0 that also knows who is alive.
//!
//! Every rank keeps one connection to it. A connection that breaks without a goodbye means that its rank
//! died. The store then ends every wait of every other rank at once, with an error that names the dead one,
//! and notifies ranks that wait for nothing, so that their devices stop waiting ([`Store::watch`]). So a
//! killed rank ends its job in bounded time. A rank that gives up calls [`Store::abort`]; one that panics
//! counts as dead. Every wait has a deadline, and every message a size limit.
//!
//! ```
//! use warpweave_comm::store::Store;
//!
//! let stores = Store::threads(2)?;
//! stores[0].set("shape", b"1024x1024")?;
//! assert_eq!(stores[1].get("shape")?, b"1024x1024");
//! assert_eq!(stores[1].add("arrivals", 1)?, 1);
//! # Ok::<(), warpweave_comm::CommError>(())
//! ```

mod address;
mod client;
mod connection;
mod effect;
mod gather;
#[cfg(all(loom, test))]
mod models;
mod origin;
pub(crate) mod refusal;
mod requests;
mod server;
pub(crate) mod sessions;
mod state;
mod sync;
pub(crate) mod wake;
pub(crate) mod wire;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use refusal::Refusal;
pub use server::StoreServer;
pub use wire::{Failure, FailureKind, LARGEST_VALUE, LONGEST_KEY};

use crate::auth::Key;
use crate::error::{CommError, Result};
use crate::job::{Job, JobToken};
use address::{connect, listening, reachable};
use client::Client;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{LossWatcher, Nodes};
use wire::{Answer, Op};

/// How long an aborting rank waits for the store, which may itself be what is stuck.
const ABORT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long [`Store::mark`] may take.
const MARK_TIMEOUT: Duration = Duration::from_secs(2);

/// One rank's handle on the job's store; any thread may use it.
///
/// Dropping it says goodbye. On rank 0 it then closes the store, so rank 0 should be the last to go: after a
/// barrier.
pub struct Store {
    // Declared before the server: rank 0 says goodbye while the store still listens.
    client: Client,
    server: Option<StoreServer>,
    rank: usize,
    world: usize,
    node: String,
    places: Mutex<Places>,
    timeout: Duration,
}

/// Where a rank is.
#[derive(Serialize, Deserialize)]
struct Place {
    node: String,
    address: IpAddr,
}

#[derive(Default)]
struct Places {
    /// How often all ranks were asked: the number of the call.
    asked: u64,
    /// By rank.
    known: Option<Arc<[Place]>>,
}

impl Store {
    /// Joins the store of `job`, which rank 0 opens.
    ///
    /// # Errors
    /// [`CommError::Refused`] with the reason, [`CommError::Timeout`] when rank 0 does not open it in time,
    /// [`CommError::Io`] when rank 0 cannot listen at its address.
    pub fn join(job: &Job) -> Result<Self> {
        let server = match job.rank() {
            0 => Some(StoreServer::bind_any(
                &listening(job.store())?,
                job.world(),
                job.token().clone(),
            )?),
            _ => None,
        };
        let job = match &server {
            Some(server) => &job
                .clone()
                .with_store(reachable(server.address()).to_string()),
            None => job,
        };
        Self::adopt(job, server)
    }

    /// A job of `world` ranks that are threads of this process, for tests and small examples: the store of
    /// each rank.
    ///
    /// # Errors
    /// As [`Store::join`].
    pub fn threads(world: usize) -> Result<Vec<Self>> {
        Job::threads(world)?
            .into_iter()
            .map(|(job, server)| Self::adopt(&job, server))
            .collect()
    }

    /// Joins the store of `job`. `server` is the store itself, if this rank already serves it.
    pub(crate) fn adopt(job: &Job, server: Option<StoreServer>) -> Result<Self> {
        let deadline = Instant::now() + job.timeout();
        let place = (job.rank(), job.world());
        let key = Key::new(job.token().as_bytes());
        let client = connect(job, place, &key, deadline)?;
        Ok(Self {
            client,
            server,
            rank: job.rank(),
            world: job.world(),
            node: job.node().into(),
            places: Mutex::default(),
            timeout: job.timeout(),
        })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// The nodes of the job. Collective the first time.
    ///
    /// # Errors
    /// As [`Store::gather`].
    pub fn nodes(&self) -> Result<Nodes> {
        let places = self.places(None)?;
        let identities: Vec<_> = places.iter().map(|place| &place.node).collect();
        Ok(Nodes::by_identity(&identities))
    }

    /// The address of each rank's host: that by which it reaches the store. For a rank that does so by
    /// loopback it is the store's, as this rank knows it. Collective the first time.
    ///
    /// # Errors
    /// As [`Store::gather`].
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        let [_, store] = self.client.ends()?;
        let places = self.places(None)?;
        let reached = places.iter().map(|place| match place.address {
            address if address.is_loopback() => store.ip(),
            address => address,
        });
        Ok(reached.collect())
    }

    /// Whether [`Store::nodes`] and [`Store::addresses`] ask nobody any more.
    pub(crate) fn knows_places(&self) -> bool {
        self.places.lock().known.is_some()
    }

    /// Asks all ranks where they are, unless this one knows, within another time if one is given. Collective.
    pub(crate) fn know_places(&self, within: Option<Duration>) -> Result<()> {
        self.places(within).map(drop)
    }

    /// Collective until it has succeeded.
    fn places(&self, within: Option<Duration>) -> Result<Arc<[Place]>> {
        const SCOPE: &str = "warpweave.places";
        let mut places = self.places.lock();
        if let Some(known) = &places.known {
            return Ok(known.clone());
        }
        places.asked += 1;
        let call = places.asked;
        let malformed = |rank: usize| CommError::Protocol {
            what: format!("rank {rank}: its place cannot be encoded or decoded"),
        };
        let [own, _] = self.client.ends()?;
        let mine = Place {
            node: self.node.clone(),
            address: own.ip().to_canonical(),
        };
        let mine = postcard::to_stdvec(&mine).map_err(|_| malformed(self.rank))?;
        // A scope of its own: it may come between any other calls.
        let all = match within {
            Some(timeout) => self.gather_within(SCOPE, call, (SCOPE, &mine), timeout)?,
            None => self.gather(SCOPE, call, SCOPE, &mine)?,
        };
        let all = all.iter().enumerate();
        let decoded =
            all.map(|(rank, bytes)| postcard::from_bytes(bytes).map_err(|_| malformed(rank)));
        let decoded: Arc<[Place]> = decoded.collect::<Result<_>>()?;
        Ok(places.known.insert(decoded).clone())
    }

    /// The default timeout of every wait.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The store's address, on the rank that serves it.
    pub fn serving_at(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(StoreServer::address)
    }

    /// Sets `key` to a value of at most [`LARGEST_VALUE`] bytes, and wakes the ranks that wait for it.
    ///
    /// # Errors
    /// [`CommError::TooLarge`], [`CommError::Rejected`] when the store is full, [`CommError::PeerLost`] when
    /// it is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        within(&format!("value of `{key}`"), value.len(), LARGEST_VALUE)?;
        self.ask(
            key,
            Op::Set {
                key: key.into(),
                value: value.into(),
            },
            self.timeout,
        )
        .map(drop)
    }

    /// The value of `key`. Waits until a rank sets it.
    ///
    /// # Errors
    /// [`CommError::Timeout`]; [`CommError::PeerLost`] or [`CommError::PeerFailed`] as soon as any rank dies
    /// or aborts.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.get_within(key, self.timeout)
    }

    /// As [`Store::get`], with its own bound.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get_within(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        match self.ask(key, Op::Get { key: key.into() }, timeout)? {
            Answer::Value(value) => Ok(value),
            other => Err(unexpected(key, &other)),
        }
    }

    /// Waits until all of `keys` have been set.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let op = Op::Wait {
            keys: keys.iter().map(|&key| key.into()).collect(),
        };
        self.ask(&keys.join(", "), op, timeout).map(drop)
    }

    /// Adds to the number that `key` holds (0 before) and returns the sum.
    ///
    /// # Errors
    /// [`CommError::Rejected`] when the key holds no number or the sum overflows.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64> {
        match self.ask(
            key,
            Op::Add {
                key: key.into(),
                delta,
            },
            self.timeout,
        )? {
            Answer::Number(sum) => Ok(sum),
            other => Err(unexpected(key, &other)),
        }
    }

    /// Stores `value` if `key` holds `expected` (`None`: nothing). Returns whether it did, and what the key
    /// holds now.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<(bool, Option<Vec<u8>>)> {
        self.swap(key, (expected, value), |op| self.ask(key, op, self.timeout))
    }

    fn swap(
        &self,
        key: &str,
        (expected, value): (Option<&[u8]>, &[u8]),
        ask: impl FnOnce(Op) -> Result<Answer>,
    ) -> Result<(bool, Option<Vec<u8>>)> {
        within(&format!("value of `{key}`"), value.len(), LARGEST_VALUE)?;
        within(
            &format!("expected value of `{key}`"),
            expected.map_or(0, <[u8]>::len),
            LARGEST_VALUE,
        )?;
        let op = Op::CompareAndSet {
            key: key.into(),
            expected: expected.map(Into::into),
            value: value.into(),
        };
        match ask(op)? {
            Answer::Swapped { stored, current } => Ok((stored, current)),
            other => Err(unexpected(key, &other)),
        }
    }

    /// The rank that first left the mark `key`: this one if `leave` is true and none has before. Waits at
    /// most two seconds for a store that does not answer.
    ///
    /// # Errors
    /// As [`Store::set`]; [`CommError::Protocol`] for a key that is no mark.
    pub fn mark(&self, key: &str, leave: bool) -> Result<Option<usize>> {
        // No mark holds nothing, so that to expect it is to look.
        let expected = (!leave).then_some(&[][..]);
        let own = self.rank().to_string();
        let (_, held) = self.swap(key, (expected, own.as_bytes()), |op| {
            self.client
                .ask_within(key, op, MARK_TIMEOUT, Duration::ZERO)
        })?;
        let rank = |held: Vec<u8>| {
            let rank = str::from_utf8(&held)
                .ok()
                .and_then(|text| text.parse().ok());
            rank.ok_or_else(|| CommError::Protocol {
                what: format!("`{key}` is no mark of a rank"),
            })
        };
        held.map(rank).transpose()
    }

    /// Every rank's bytes, by rank: the `call`-th all-gather of `scope`, which all ranks make under the same
    /// `tag`.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] when a rank is at another tag, [`CommError::Timeout`] naming the ranks that
    /// did not come, [`CommError::PeerLost`], [`CommError::PeerFailed`]. All ranks get an error, or none
    /// does.
    pub fn gather(&self, scope: &str, call: u64, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.all_gather((scope, call, tag), bytes, |op| {
            self.ask(tag, op, self.timeout)
        })
    }

    /// As [`Store::gather`], for a rank that knows that another may not arrive: waits at most `timeout`, and
    /// as long again for a store that does not answer. The other ranks' calls end with it.
    ///
    /// # Errors
    /// As [`Store::gather`].
    pub fn gather_within(
        &self,
        scope: &str,
        call: u64,
        (tag, bytes): (&str, &[u8]),
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        self.all_gather((scope, call, tag), bytes, |op| {
            self.client.ask_within(tag, op, timeout, timeout)
        })
    }

    fn all_gather(
        &self,
        (scope, call, tag): (&str, u64, &str),
        bytes: &[u8],
        ask: impl FnOnce(Op) -> Result<Answer>,
    ) -> Result<Vec<Vec<u8>>> {
        within("a key or tag", tag.len(), 64 * LONGEST_KEY)?;
        within(
            &format!("contribution to `{tag}`"),
            bytes.len(),
            LARGEST_VALUE,
        )?;
        let op = Op::AllGather {
            scope: scope.into(),
            call,
            tag: tag.into(),
            bytes: bytes.into(),
        };
        let answer = ask(op)?;
        let all = match &answer {
            Answer::Gathered(all) => all.decode(),
            _ => None,
        };
        let all = all.filter(|all| all.len() == self.world);
        all.ok_or_else(|| unexpected(tag, &answer))
    }

    /// Ends the job for all ranks: every wait, current or later, fails with `message` and this rank's number.
    /// Takes at most half a second.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] when the store itself is gone, [`CommError::Timeout`] when it does not answer.
    pub fn abort(&self, message: &str) -> Result<()> {
        let mut end = message.len().min(LONGEST_KEY);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        let op = Op::Abort {
            message: message[..end].into(),
        };
        let grace = Duration::ZERO;
        self.client
            .ask_within("abort", op, ABORT_TIMEOUT, grace)
            .map(drop)
    }

    /// Closes the store on the rank that serves it, as dropping it would, for a process that is about to exit
    /// without dropping anything: pending messages are delivered. Takes at most three seconds; does nothing
    /// on other ranks.
    pub fn close(&self) {
        if let Some(server) = &self.server {
            server.close();
        }
    }

    /// Round-trip time of a request to the store.
    ///
    /// # Errors
    /// [`CommError::Timeout`] when the store does not answer, [`CommError::PeerLost`] when it is gone.
    pub fn ping(&self) -> Result<Duration> {
        let start = Instant::now();
        self.ask("ping", Op::Ping, self.timeout)?;
        Ok(start.elapsed())
    }

    /// The failure of the job, if this rank has received it. Never waits.
    pub fn failure(&self) -> Option<Failure> {
        self.client.failure()
    }

    /// The failure of the job, if there is one, as an error during `what`.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::PeerFailed`].
    pub fn check(&self, what: &str) -> Result<()> {
        self.failure()
            .map_or(Ok(()), |failure| Err(self.client.ended_by(&failure, what)))
    }

    /// Readable once [`Store::failure`] is some: for threads that wait on other descriptors.
    pub fn failed(&self) -> BorrowedFd<'_> {
        self.client.failed()
    }

    /// Calls `watcher` once a rank dies or aborts, from a thread of the store's; from this thread if one
    /// already has. No request need be pending.
    pub fn watch(&self, watcher: LossWatcher) {
        self.client.watch(watcher);
    }

    fn ask(&self, what: &str, op: Op, timeout: Duration) -> Result<Answer> {
        within("a key or tag", what.len(), 64 * LONGEST_KEY)?;
        self.client.ask(what, op, timeout)
    }
}

impl Job {
    /// The jobs of `world` ranks in this process, the first with its server.
    pub(crate) fn threads(world: usize) -> Result<Vec<(Job, Option<StoreServer>)>> {
        let token = JobToken::random()?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Some(StoreServer::bind(any, world, token.clone())?);
        let address = server
            .as_ref()
            .map_or(any, StoreServer::address)
            .to_string();
        (0..world)
            .map(|rank| {
                Ok((
                    Job::new(rank, world, &address, token.clone())?,
                    server.take(),
                ))
            })
            .collect()
    }
}

fn within(what: &str, size: usize, limit: usize) -> Result<()> {
    if size > limit {
        return Err(CommError::TooLarge {
            what: what.into(),
            size,
            limit,
        });
    }
    Ok(())
}

fn unexpected(what: &str, answer: &Answer) -> CommError {
    let kind = match answer {
        Answer::Done => "done",
        Answer::Value(_) => "a value",
        Answer::Number(_) => "a number",
        Answer::Swapped { .. } => "a swap",
        Answer::Gathered(_) => "an all-gather",
        _ => "an error",
    };
    CommError::Protocol {
        what: format!("the store answered `{what}` with {kind}"),
    }
}
