//! The store's thread on rank 0: sockets around the [`SessionTable`].

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Outgoing, Phase, keep_alive};
use super::origin;
use super::sessions::{Action, Actions, SessionTable};
use super::wake::{WakeFd, is_ready, wait_ready};
use super::wire::{FrameBuffer, REPLY_LIMIT, Refusal, ToClient, encode_reply};
use crate::auth::challenge;
use crate::error::{CommError, Result};
use crate::job::{JobToken, LARGEST_WORLD};

/// How long a connection may take to send its greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that may be greeting at the same time, besides those of the ranks.
const MAX_GREETING: usize = 64;
/// How long to stop accepting after an error, such as no free descriptor.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);
/// Most bytes queued for a rank that does not read.
const MAX_UNSENT: usize = 2 * REPLY_LIMIT;
/// How long a closing store waits for ranks that have not joined yet, to send them the job's failure.
const LINGER: Duration = Duration::from_secs(2);
/// How long a closing store may take to deliver its last answers.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// The store of a job, served by a thread of this process until it is dropped.
///
/// Dropping it delivers pending answers and tells the ranks that the store closes. That takes at most three
/// seconds, and takes long only if the job failed before all ranks joined or a rank does not read.
pub struct StoreServer {
    address: SocketAddr,
    stop: Arc<WakeFd>,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Listens at `address` (port 0: any free port) for the `world` ranks that know `token`.
    ///
    /// # Errors
    /// [`CommError::Io`] when the address cannot be listened at, [`CommError::InvalidArgument`] when `world`
    /// is 0 or above 4096.
    pub fn bind(address: SocketAddr, world: usize, token: JobToken) -> Result<Self> {
        Self::bind_any(&[address], world, token)
    }

    /// As [`StoreServer::bind`], at the first of `addresses` that can be listened at.
    pub(super) fn bind_any(
        addresses: &[SocketAddr],
        world: usize,
        token: JobToken,
    ) -> Result<Self> {
        if !(1..=LARGEST_WORLD).contains(&world) {
            return Err(CommError::InvalidArgument {
                what: "world size",
                why: format!("{world}; a job has 1 to {LARGEST_WORLD} ranks"),
            });
        }
        let failed = |e: std::io::Error| {
            let hint = match e.kind() {
                ErrorKind::AddrInUse => {
                    " (another job's store listens here: give another WARPWEAVE_STORE, or end what is left \
                     of the earlier job)"
                }
                _ => "",
            };
            let what = format!("listening for the job's store at {addresses:?}{hint}");
            CommError::io(what, e)
        };
        let listener = TcpListener::bind(addresses).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if !token.is_secret() && !address.ip().is_loopback() {
            tracing::warn!(
                "the job's store listens at {address} with a token made of the launcher's job id, which is \
                 not secret: set WARPWEAVE_JOB_TOKEN on every rank to keep other hosts out"
            );
        }
        let stop = Arc::new(WakeFd::new()?);
        let service = Service {
            listener,
            stop: stop.clone(),
            sessions: SessionTable::new(world, token),
            connections: BTreeMap::new(),
            next: 0,
            accept_after: None,
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
    /// Stops the service as dropping it does, and takes as long.
    pub(super) fn close(&self) {
        self.stop.wake();
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Service {
    listener: TcpListener,
    stop: Arc<WakeFd>,
    sessions: SessionTable,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Accept no connections until then.
    accept_after: Option<Instant>,
}

impl Service {
    fn run(mut self) {
        let mut lingering = None;
        loop {
            if lingering.is_some_and(|until| {
                Instant::now() >= until || !self.sessions.state().has_news_for_late_ranks()
            }) {
                break;
            }
            let ids: Vec<u64> = self.connections.keys().copied().collect();
            let parting = self
                .connections
                .values()
                .filter_map(Connection::until)
                .min();
            let deadline = [
                parting,
                self.sessions.state().next_deadline(),
                lingering,
                self.accept_after,
            ]
            .into_iter()
            .flatten()
            .min();
            // Once woken it stays readable, which would make the thread spin.
            let unless = |quiet: bool| match quiet {
                true => PollFlags::empty(),
                false => PollFlags::IN,
            };
            let mut fds = vec![
                PollFd::new(&self.stop, unless(lingering.is_some())),
                PollFd::new(&self.listener, unless(self.accept_after.is_some())),
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
                // Requests that have arrived are still served: rank 0's own connection may have broken
                // before.
                lingering = Some(Instant::now() + LINGER);
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
            self.accept_after = self.accept_after.filter(|until| *until > now);
            let actions = self.sessions.expire(now);
            self.perform(actions);
            let late = self.connections.iter();
            let late = late.filter(|(_, c)| c.until().is_some_and(|until| until <= now));
            let late: Vec<u64> = late.map(|(&id, _)| id).collect();
            late.into_iter()
                .for_each(|id| self.gone(id, "it came too late"));
        }
        self.close();
    }

    fn accept(&mut self) {
        // A few at a time, so that a flood of connections does not delay the ranks.
        for _ in 0..16 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => {
                    let passing = [
                        ErrorKind::WouldBlock,
                        ErrorKind::Interrupted,
                        ErrorKind::ConnectionAborted,
                    ];
                    if !passing.contains(&e.kind()) {
                        self.accept_after = Some(Instant::now() + ACCEPT_BACKOFF);
                    }
                    return;
                }
            };
            self.evict_oldest();
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            keep_alive(&stream);
            let connection = Connection {
                stream,
                incoming: FrameBuffer::default(),
                outgoing: Outgoing::default(),
                phase: Phase::Greeting {
                    until: Instant::now() + GREETING_TIMEOUT,
                },
            };
            self.connections.insert(self.next, connection);
            match challenge() {
                Ok(challenge) => {
                    let actions = self.sessions.accept(self.next, challenge);
                    self.perform(actions);
                }
                // Without randomness nobody can prove anything.
                Err(_) => drop(self.connections.remove(&self.next)),
            }
            self.next += 1;
        }
    }

    /// Drops the connection that has been greeting longest: a rank greets at once, so it gets in through a
    /// flood.
    fn evict_oldest(&mut self) {
        if self.connections.len() < self.sessions.state().world() + MAX_GREETING {
            return;
        }
        let oldest = self
            .connections
            .iter()
            .find_map(|(&id, c)| c.until().map(|_| id));
        if let Some(id) = oldest {
            self.gone(id, "others took its place");
        }
    }

    /// Reads what has arrived, handles it, and writes what is queued.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let read = connection.read();
        while let Some(connection) = self.connections.get_mut(&id) {
            let greeting = match connection.phase {
                Phase::Greeting { .. } => true,
                Phase::Joined => false,
                Phase::Closing { .. } => break,
            };
            let actions = match connection.incoming.next(self.sessions.limit(id)) {
                Ok(Some(_))
                    if greeting
                        && self.sessions.requires_same_user()
                        && !origin::may_be_same_user(&connection.stream) =>
                {
                    self.sessions.refuse(id, Refusal::User)
                }
                Ok(Some(message)) => self.sessions.handle(id, message, Instant::now()),
                Ok(None) => break,
                Err(refusal) => self.sessions.refuse(id, refusal),
            };
            self.perform(actions);
        }
        match read {
            Ok(()) => self.flush(id),
            Err(cause) => self.gone(id, &cause),
        }
    }

    fn perform(&mut self, mut actions: Actions) {
        while let Some(action) = actions.pop_front() {
            let (id, done) = match action {
                Action::Admit(id) => (id, self.turn(id, Phase::Joined)),
                Action::Close(id) => {
                    let until = Instant::now() + CLOSING_TIME;
                    (id, self.turn(id, Phase::Closing { until }))
                }
                Action::Send(id, message) => (id, self.send(id, &message)),
            };
            if let Err(cause) = done {
                self.connections.remove(&id);
                actions.extend(self.sessions.disconnected(id, &cause));
            }
        }
    }

    fn turn(&mut self, id: u64, phase: Phase) -> Result<(), String> {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = phase;
        }
        self.write(id)
    }

    fn send(&mut self, id: u64, message: &ToClient) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        // A reply is bounded by what its all-gather admits, so its size cannot make encoding fail.
        let Ok((own, shared)) = encode_reply(message) else {
            return Ok(());
        };
        let outgoing = &mut connection.outgoing;
        outgoing.push(own.into());
        shared.into_iter().for_each(|part| outgoing.push(part));
        if outgoing.bytes() > MAX_UNSENT {
            return Err("it does not read what the store sends".into());
        }
        self.write(id)
    }

    fn write(&mut self, id: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        connection.write()?;
        if connection.outgoing.is_empty() && matches!(connection.phase, Phase::Closing { .. }) {
            self.connections.remove(&id);
        }
        Ok(())
    }

    fn flush(&mut self, id: u64) {
        if let Err(cause) = self.write(id) {
            self.gone(id, &cause);
        }
    }

    fn gone(&mut self, id: u64, cause: &str) {
        self.connections.remove(&id);
        let actions = self.sessions.disconnected(id, cause);
        self.perform(actions);
    }

    fn close(mut self) {
        let actions = self.sessions.close();
        self.perform(actions);
        let until = Instant::now() + CLOSING_TIME;
        loop {
            self.connections
                .retain(|_, c| c.write().is_ok() && !c.outgoing.is_empty());
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
