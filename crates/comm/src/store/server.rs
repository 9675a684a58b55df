//! The store's thread on rank 0: sockets around the [`Reception`].

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::connection::{Connection, Phase, keep_alive};
use super::origin;
use super::reception::{Post, Posts, Reception};
use super::wake::{Bell, is_ready, wait_ready};
use super::wire::{Inbox, REPLY_LIMIT, Refusal, ToClient, encode};
use crate::error::{CommError, Result};
use crate::job::{JobToken, LARGEST_WORLD};

/// How long a stranger may take to say who it is.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Strangers that may be greeting at the same time, beside the ranks.
const MOST_STRANGERS: usize = 64;
/// How long a host that has no descriptor left for another connection is not asked again.
const BREATH: Duration = Duration::from_millis(50);
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
    /// [`CommError::Io`] when the address cannot be listened at, [`CommError::InvalidArgument`] when `world` is 0 or
    /// above 4096.
    pub fn bind(address: SocketAddr, world: usize, token: JobToken) -> Result<Self> {
        if !(1..=LARGEST_WORLD).contains(&world) {
            return Err(CommError::InvalidArgument {
                what: "world size",
                why: format!("{world}; a job has 1 to {LARGEST_WORLD} ranks"),
            });
        }
        let failed = |e| CommError::io(format!("listening for the job's store at {address}"), e);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if !token.is_secret() && !address.ip().is_loopback() {
            tracing::warn!(
                "the job's store listens at {address} with a token made of the launcher's job id, which is no secret: \
                 set WARPWEAVE_JOB_TOKEN on every rank to keep other hosts out"
            );
        }
        let stop = Arc::new(Bell::new()?);
        let service = Service {
            listener,
            stop: stop.clone(),
            reception: Reception::new(world, token),
            connections: BTreeMap::new(),
            next: 0,
            resting: None,
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
    reception: Reception,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Until when the listener is left alone.
    resting: Option<Instant>,
}

impl Service {
    fn run(mut self) {
        let mut lingering = None;
        loop {
            if lingering.is_some_and(|until| {
                Instant::now() >= until || !self.reception.state().has_news_for_late_ranks()
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
                self.reception.state().next_deadline(),
                lingering,
                self.resting,
            ]
            .into_iter()
            .flatten()
            .min();
            // Once rung it stays readable, which would keep the thread awake.
            let unless = |quiet: bool| match quiet {
                true => PollFlags::empty(),
                false => PollFlags::IN,
            };
            let mut fds = vec![
                PollFd::new(&self.stop, unless(lingering.is_some())),
                PollFd::new(&self.listener, unless(self.resting.is_some())),
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
                // What has come by now is still served: rank 0's own connection may have broken before.
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
            self.resting = self.resting.filter(|until| *until > now);
            let posts = self.reception.expire(now);
            self.carry_out(posts);
            self.connections
                .retain(|_, c| c.until().is_none_or(|until| until > now));
        }
        self.close();
    }

    fn accept(&mut self) {
        // Few at a time, so that a flood of strangers does not keep the ranks waiting.
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
                        self.resting = Some(Instant::now() + BREATH);
                    }
                    return;
                }
            };
            self.make_room();
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            keep_alive(&stream);
            let connection = Connection {
                stream,
                inbox: Inbox::default(),
                outbox: Vec::new(),
                phase: Phase::Stranger {
                    until: Instant::now() + GREETING_TIME,
                },
            };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
    }

    /// The stranger who has had the longest time to greet goes first: a rank greets at once, and gets in through a flood.
    fn make_room(&mut self) {
        if self.connections.len() < self.reception.state().world() + MOST_STRANGERS {
            return;
        }
        let oldest = self
            .connections
            .iter()
            .find_map(|(&id, c)| c.until().map(|_| id));
        if let Some(id) = oldest {
            self.connections.remove(&id);
        }
    }

    /// Reads what has come, acts on it, and writes what is queued.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let read = connection.read();
        while let Some(connection) = self.connections.get_mut(&id) {
            let stranger = match connection.phase {
                Phase::Stranger { .. } => true,
                Phase::Member => false,
                Phase::Parting { .. } => break,
            };
            let posts = match connection.inbox.next(self.reception.limit(id)) {
                Ok(Some(_))
                    if stranger
                        && self.reception.wants_own_user()
                        && !origin::may_be_own(&connection.stream) =>
                {
                    self.reception.refuse(id, Refusal::User)
                }
                Ok(Some(message)) => self.reception.heed(id, message, Instant::now()),
                Ok(None) => break,
                Err(refusal) => self.reception.refuse(id, refusal),
            };
            self.carry_out(posts);
        }
        match read {
            Ok(()) => self.flush(id),
            Err(cause) => self.gone(id, &cause),
        }
    }

    fn carry_out(&mut self, mut posts: Posts) {
        while let Some(post) = posts.pop_front() {
            let (id, done) = match post {
                Post::Seat(id) => (id, self.turn(id, Phase::Member)),
                Post::Part(id) => {
                    let until = Instant::now() + CLOSING_TIME;
                    (id, self.turn(id, Phase::Parting { until }))
                }
                Post::Send(id, message) => (id, self.send(id, &message)),
            };
            if let Err(cause) = done {
                self.connections.remove(&id);
                posts.extend(self.reception.gone(id, &cause));
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
        // A reply is bounded by what its round admits, so that encoding it cannot fail for its size.
        let Ok(frame) = encode(message, "reply", REPLY_LIMIT) else {
            return Ok(());
        };
        if connection.outbox.len() + frame.len() > LONGEST_QUEUE {
            return Err("it does not read what the store sends".into());
        }
        connection.outbox.extend_from_slice(&frame);
        self.write(id)
    }

    fn write(&mut self, id: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        connection.write()?;
        if connection.outbox.is_empty() && matches!(connection.phase, Phase::Parting { .. }) {
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
        let posts = self.reception.gone(id, cause);
        self.carry_out(posts);
    }

    fn close(mut self) {
        let posts = self.reception.close();
        self.carry_out(posts);
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
