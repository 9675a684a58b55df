//! The store's thread on rank 0: sockets around the [`State`].

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Who, keep_alive};
use super::state::{Effect, State, Waiter};
use super::wake::{Bell, is_ready, wait_ready};
use super::wire::{
    GREETING_LIMIT, Inbox, REPLY_LIMIT, REQUEST_LIMIT, Refusal, ToClient, ToServer, encode,
};
use crate::error::{CommError, Result};
use crate::job::JobToken;

/// How long a stranger may take to say who it is.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Strangers that may be greeting at the same time, beside the ranks.
const MOST_STRANGERS: usize = 64;
/// What may be queued for a rank that does not read.
const LONGEST_QUEUE: usize = 2 * REPLY_LIMIT;
/// How long a store that is to end waits for ranks that have not joined yet, to tell them that the job has failed.
const LINGER: Duration = Duration::from_secs(2);
/// How long the end of the store may take to deliver its last answers.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// The store of a job, served by a thread of this process until it is dropped.
///
/// Dropping it delivers the answers already given and tells the ranks that the store closes. It takes three seconds at
/// most, and that only when the job has failed before all ranks had joined, or a rank does not read.
pub struct StoreServer {
    address: SocketAddr,
    stop: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Listens at `address` (port 0: any free one) for the `world` ranks that know `token`.
    ///
    /// # Errors
    /// [`CommError::Io`] when the address cannot be listened at.
    pub fn bind(address: SocketAddr, world: usize, token: JobToken) -> Result<Self> {
        let failed = |e| CommError::io(format!("listening for the job's store at {address}"), e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::new(Bell::new()?);
        let service = Service {
            listener,
            stop: stop.clone(),
            token,
            state: State::new(world),
            connections: BTreeMap::new(),
            ranks: BTreeMap::new(),
            next: 0,
        };
        let thread = std::thread::Builder::new()
            .name("warpweave-store".into())
            .spawn(move || service.run())
            .map_err(|e| CommError::io("starting the store's thread", e))?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl StoreServer {
    /// Ends the service as dropping it does, and takes as long.
    pub(super) fn close(&self) {
        self.stop.ring();
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Service {
    listener: TcpListener,
    stop: Arc<Bell>,
    token: JobToken,
    state: State,
    connections: BTreeMap<u64, Connection>,
    /// Connection of each rank that has joined.
    ranks: BTreeMap<usize, u64>,
    next: u64,
}

impl Service {
    fn run(mut self) {
        let mut lingering = None;
        loop {
            if lingering.is_some_and(|until| {
                Instant::now() >= until || !self.state.has_news_for_late_ranks()
            }) {
                break;
            }
            let ids: Vec<u64> = self.connections.keys().copied().collect();
            let greeting = self
                .connections
                .values()
                .filter_map(Connection::until)
                .min();
            let deadline = [greeting, self.state.next_deadline(), lingering]
                .into_iter()
                .flatten()
                .min();
            // Once rung it stays readable, which would keep the thread awake.
            let stop = if lingering.is_none() {
                PollFlags::IN
            } else {
                PollFlags::empty()
            };
            let mut fds = vec![
                PollFd::new(&self.stop, stop),
                PollFd::new(&self.listener, PollFlags::IN),
            ];
            fds.extend(
                self.connections
                    .values()
                    .map(|c| PollFd::new(&c.stream, c.interest())),
            );
            if wait_ready(&mut fds, deadline).is_err() {
                break;
            }
            let ready: Vec<bool> = fds.iter().map(is_ready).collect();
            if ready[0] {
                lingering = Some(Instant::now() + LINGER);
                continue;
            }
            for (id, _) in ids
                .into_iter()
                .zip(&ready[2..])
                .filter(|(_, ready)| **ready)
            {
                self.serve(id);
            }
            if ready[1] {
                self.accept();
            }
            let now = Instant::now();
            let effects = self.state.expire(now);
            self.carry_out(effects);
            self.connections
                .retain(|_, c| c.until().is_none_or(|until| until > now));
        }
        self.close();
    }

    fn accept(&mut self) {
        // Few at a time, so that a flood of strangers does not keep the ranks waiting.
        for _ in 0..16 {
            let Ok((stream, _)) = self.listener.accept() else {
                return;
            };
            if self.connections.len() >= self.state.world() + MOST_STRANGERS {
                continue;
            }
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            keep_alive(&stream);
            let who = Who::Stranger {
                until: Instant::now() + GREETING_TIME,
            };
            let connection = Connection {
                stream,
                inbox: Inbox::default(),
                outbox: Vec::new(),
                who,
            };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
    }

    /// Reads what has come, acts on it, and writes what is queued.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let read = connection.read();
        while let Some(connection) = self.connections.get_mut(&id) {
            let limit = match connection.who {
                Who::Stranger { .. } => GREETING_LIMIT,
                Who::Rank(_) => REQUEST_LIMIT,
                Who::Parting { .. } => break,
            };
            match connection.inbox.next(limit) {
                Ok(Some(message)) => self.heed(id, message),
                Ok(None) => break,
                Err(refusal) => self.refuse(id, refusal),
            }
        }
        if let Err(cause) = read {
            return self.gone(id, &cause);
        }
        self.flush(id);
    }

    fn heed(&mut self, id: u64, message: ToServer) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let effects = match (connection.who, message) {
            (Who::Stranger { .. }, ToServer::Hello { token, rank, world }) => {
                match self.admit(&token, rank, world) {
                    Ok(rank) => self.welcome(id, rank),
                    Err(refusal) => self.refuse(id, refusal),
                }
                return;
            }
            (Who::Rank(rank), ToServer::Request { id, timeout_ms, op }) => {
                let deadline =
                    Instant::now() + Duration::from_millis(timeout_ms.min(LONGEST_WAIT_MS));
                self.state.request(Waiter { rank, id, deadline }, op)
            }
            (Who::Rank(rank), ToServer::Goodbye) => {
                self.part(id);
                self.ranks.remove(&rank);
                self.state.leave(rank)
            }
            _ => return self.refuse(id, Refusal::Malformed),
        };
        self.carry_out(effects);
    }

    fn admit(&mut self, token: &[u8], rank: u32, world: u32) -> Result<usize, Refusal> {
        if !self.token.admits(token) {
            return Err(Refusal::Token);
        }
        if world as usize != self.state.world() {
            return Err(Refusal::World {
                store: self.state.world() as u32,
            });
        }
        self.state.join(rank as usize)?;
        Ok(rank as usize)
    }

    fn welcome(&mut self, id: u64, rank: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.who = Who::Rank(rank);
        }
        self.ranks.insert(rank, id);
        self.send(id, &ToClient::Welcome);
        if let Some(failure) = self.state.failure().cloned() {
            self.send(id, &ToClient::Failed(failure));
        }
    }

    /// Says why, and lets go. A rank that breaks the protocol is lost to the job.
    fn refuse(&mut self, id: u64, refusal: Refusal) {
        let who = self.connections.get(&id).map(|c| c.who);
        self.send(id, &ToClient::Refused(refusal.clone()));
        self.part(id);
        if let Some(Who::Rank(rank)) = who {
            self.ranks.remove(&rank);
            let effects = self.state.lose(rank, &format!("it sent {refusal}"));
            self.carry_out(effects);
        }
    }

    fn part(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.who = Who::Parting {
                until: Instant::now() + CLOSING_TIME,
            };
        }
    }

    fn gone(&mut self, id: u64, cause: &str) {
        if let Some(Connection {
            who: Who::Rank(rank),
            ..
        }) = self.connections.remove(&id)
        {
            self.ranks.remove(&rank);
            let effects = self.state.lose(rank, cause);
            self.carry_out(effects);
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { rank, id, answer } => {
                    if let Some(&connection) = self.ranks.get(&rank) {
                        self.send(connection, &ToClient::Reply { id, answer });
                    }
                }
                Effect::Announce(failure) => {
                    for connection in self.ranks.values().copied().collect::<Vec<_>>() {
                        self.send(connection, &ToClient::Failed(failure.clone()));
                    }
                }
            }
        }
    }

    fn send(&mut self, id: u64, message: &ToClient) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        // A reply is bounded by what its round admits, so that encoding it cannot fail for its size.
        let Ok(frame) = encode(message, "reply", REPLY_LIMIT) else {
            return;
        };
        if connection.outbox.len() + frame.len() > LONGEST_QUEUE {
            return self.gone(id, "it does not read what the store sends");
        }
        connection.outbox.extend_from_slice(&frame);
        self.flush(id);
    }

    fn flush(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.write() {
            Err(cause) => self.gone(id, &cause),
            Ok(())
                if connection.outbox.is_empty()
                    && matches!(connection.who, Who::Parting { .. }) =>
            {
                self.connections.remove(&id);
            }
            Ok(()) => {}
        }
    }

    fn close(mut self) {
        for rank in self.ranks.values().copied().collect::<Vec<_>>() {
            self.send(rank, &ToClient::Closing);
        }
        let until = Instant::now() + CLOSING_TIME;
        loop {
            self.connections
                .retain(|_, c| c.write().is_ok() && !c.outbox.is_empty());
            if self.connections.is_empty() || Instant::now() >= until {
                return;
            }
            let mut fds: Vec<_> = self
                .connections
                .values()
                .map(|c| PollFd::new(&c.stream, PollFlags::OUT))
                .collect();
            if wait_ready(&mut fds, Some(until)).is_err() {
                return;
            }
        }
    }
}

/// A day: no wait is longer, whatever a rank asks for.
const LONGEST_WAIT_MS: u64 = 86_400_000;
