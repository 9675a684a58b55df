//! A rank's connection to the store: requests from any thread, answers sorted by one reader thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use warpweave_symm_mem::LossWatcher;
use warpweave_symm_mem::backend::LONGEST_TIMEOUT;

use super::requests::{ClientRequests, Outcome, Watch, closed_here, lost};
use super::wake::{WakeFd, is_ready, wait_ready};
use super::wire::{
    Answer, Failure, FailureKind, FrameBuffer, GREETING_LIMIT, Greeting, Op, REPLY_LIMIT,
    REQUEST_LIMIT, Refusal, ToClient, ToServer, encode,
};
use crate::auth::{Key, challenge};
use crate::error::{CommError, Result};

/// How long the server's timeout answer may take to arrive. After that the store itself counts as stalled.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Client {
    rank: usize,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

struct Shared {
    stream: TcpStream,
    writing: Mutex<()>,
    requests: ClientRequests<WakeFd, LossWatcher>,
    stop: WakeFd,
}

impl Client {
    /// Answers the store's challenge on a fresh connection, and waits for the welcome and the store's proof.
    pub(super) fn join(
        stream: TcpStream,
        address: &str,
        (rank, world): (usize, usize),
        key: &Key,
        deadline: Instant,
    ) -> Result<Self> {
        let failed = |e| CommError::io(format!("talking to the store at {address}"), e);
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        super::connection::keep_alive(&stream);
        let shared = Arc::new(Shared {
            stream,
            writing: Mutex::new(()),
            requests: ClientRequests::new(WakeFd::new()?),
            stop: WakeFd::new()?,
        });
        let mut incoming = FrameBuffer::default();
        let place = (rank as u32, world as u32);
        shared
            .greet(&mut incoming, key, place, deadline)
            .map_err(|why| match why {
                Unwelcome::Refused(reason) => CommError::Refused {
                    address: address.into(),
                    rank,
                    reason,
                },
                Unwelcome::Broken(e) => {
                    CommError::io(format!("greeting the store at {address}"), e)
                }
            })?;
        let reader = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("warpweave-rank-{rank}"))
                .spawn(move || shared.read_until_closed(incoming))
                .map_err(|e| {
                    CommError::io("starting the thread that reads the store's answers", e)
                })?
        };
        Ok(Self {
            rank,
            shared,
            reader: Some(reader),
        })
    }

    /// Sends a request and waits for its answer, which the server gives by `timeout`. `what` names the
    /// request in errors.
    pub(super) fn ask(&self, what: &str, op: Op, timeout: Duration) -> Result<Answer> {
        self.ask_within(what, op, timeout, GRACE)
    }

    /// As [`Client::ask`], with another bound on how late the server's timeout answer may be.
    pub(super) fn ask_within(
        &self,
        what: &str,
        op: Op,
        timeout: Duration,
        grace: Duration,
    ) -> Result<Answer> {
        let start = Instant::now();
        let timeout = timeout.min(LONGEST_TIMEOUT);
        let deadline = start + timeout + grace;
        let requests = &self.shared.requests;
        let id = requests.register().map_err(|f| self.ended_by(&f, what))?;
        let request = ToServer::Request {
            id,
            timeout_ms: timeout.as_millis() as u64,
            op,
        };
        let frame = encode(&request, what, REQUEST_LIMIT).inspect_err(|_| requests.withdraw(id))?;
        // If sending fails, the reader learns why the connection broke, and the wait ends with that.
        let sent = self.shared.send(&frame, deadline);
        let answer = match requests.wait(id, deadline) {
            Outcome::Answered(answer) => answer,
            Outcome::Ended(failure) => return Err(self.ended_by(&failure, what)),
            Outcome::TimedOut => {
                let why = match sent {
                    Ok(()) => "the store on rank 0 does not answer",
                    Err(_) => "the store on rank 0 does not take the request",
                };
                return Err(CommError::Timeout {
                    rank: self.rank,
                    what: format!("{what} ({why})"),
                    waiting_for: vec![0],
                    after: start.elapsed(),
                });
            }
        };
        match answer {
            Answer::TimedOut { waiting_for } => Err(CommError::Timeout {
                rank: self.rank,
                what: what.into(),
                waiting_for: waiting_for.into_iter().map(|r| r as usize).collect(),
                after: start.elapsed(),
            }),
            Answer::Failed(failure) => Err(self.ended_by(&failure, what)),
            Answer::Mismatch { rank, theirs } => Err(CommError::Mismatch {
                rank: self.rank,
                mine: what.into(),
                peer: rank as usize,
                theirs,
            }),
            Answer::Rejected(why) => Err(CommError::Rejected {
                rank: self.rank,
                what: what.into(),
                why,
            }),
            answer => Ok(answer),
        }
    }

    /// The addresses of both ends of the connection: this rank's, and the store's.
    pub(super) fn ends(&self) -> Result<[SocketAddr; 2]> {
        let stream = &self.shared.stream;
        let failed = |e| CommError::io("asking for the ends of the connection to the store", e);
        let own = stream.local_addr().map_err(failed)?;
        Ok([own, stream.peer_addr().map_err(failed)?])
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.shared.requests.failure()
    }

    pub(super) fn failed(&self) -> BorrowedFd<'_> {
        self.shared.requests.failed().as_fd()
    }

    pub(super) fn watch(&self, watcher: LossWatcher) {
        self.shared.requests.watch(watcher);
    }

    pub(super) fn ended_by(&self, failure: &Failure, what: &str) -> CommError {
        let (rank, peer, what) = (self.rank, failure.rank as usize, what.to_owned());
        let cause = failure.cause.clone();
        match failure.kind {
            FailureKind::Aborted => CommError::PeerFailed {
                rank,
                peer,
                what,
                cause,
                unavailable: false,
            },
            FailureKind::Lost | FailureKind::Left => CommError::PeerLost {
                rank,
                peer,
                what,
                cause,
            },
        }
    }
}

impl Watch for LossWatcher {
    fn lost(&self, failure: &Failure) {
        let cause = match failure.kind {
            FailureKind::Aborted => format!("it gave up: {}", failure.cause),
            FailureKind::Lost | FailureKind::Left => failure.cause.clone(),
        };
        self.notify(Some(failure.rank as usize), &cause);
    }

    fn is_live(&self) -> bool {
        LossWatcher::is_live(self)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // First of all: otherwise the end of the connection, which the goodbye causes, would look like rank
        // 0's.
        self.shared.stop.wake();
        let own = std::thread::current().id();
        if let Some(reader) = self.reader.take().filter(|r| r.thread().id() != own) {
            let _ = reader.join();
        }
        // A rank that panics has not done its part: the others must see it as lost.
        if std::thread::panicking() {
            return;
        }
        if let Ok(frame) = encode(&ToServer::Goodbye, "goodbye", REQUEST_LIMIT) {
            let _ = self
                .shared
                .send(&frame, Instant::now() + Duration::from_millis(200));
        }
    }
}

enum Unwelcome {
    Refused(Refusal),
    Broken(std::io::Error),
}

impl From<std::io::Error> for Unwelcome {
    fn from(e: std::io::Error) -> Self {
        Unwelcome::Broken(e)
    }
}

impl Shared {
    fn send(&self, frame: &[u8], deadline: Instant) -> Result<(), Unwelcome> {
        // Another thread's longer deadline must not keep this one past its own.
        let Some(_one_frame_at_a_time) = self.writing.try_lock_until(deadline) else {
            return Err(std::io::Error::from(ErrorKind::TimedOut).into());
        };
        let mut rest = frame;
        let sent = loop {
            if rest.is_empty() {
                return Ok(());
            }
            match (&self.stream).write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if let Err(e) = self.ready(PollFlags::OUT, deadline) {
                        break e;
                    }
                }
                Err(e) => break e.into(),
            }
        };
        if rest.len() < frame.len() {
            // The next frame of another thread would be read as the rest of this one.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        Err(sent)
    }

    fn greet(
        &self,
        incoming: &mut FrameBuffer,
        key: &Key,
        place: (u32, u32),
        deadline: Instant,
    ) -> Result<(), Unwelcome> {
        let ToClient::Challenge(host) = self.next(incoming, deadline)? else {
            return Err(Unwelcome::Refused(Refusal::Malformed));
        };
        let broken = |e: CommError| Unwelcome::Broken(std::io::Error::other(e));
        let greeting = Greeting::new(key, place, host, challenge().map_err(broken)?);
        let challenges = greeting.challenges(host);
        let hello = ToServer::Hello(greeting);
        let hello = encode(&hello, "greeting", GREETING_LIMIT).map_err(broken)?;
        self.send(&hello, deadline)?;
        match self.next(incoming, deadline)? {
            ToClient::Welcome(proof) if key.trusts(&challenges, proof) => Ok(()),
            ToClient::Welcome(_) => Err(Unwelcome::Refused(Refusal::Token)),
            _ => Err(Unwelcome::Refused(Refusal::Malformed)),
        }
    }

    /// The next message of a store that has not welcomed this rank yet.
    fn next(&self, incoming: &mut FrameBuffer, deadline: Instant) -> Result<ToClient, Unwelcome> {
        loop {
            match incoming.next(GREETING_LIMIT) {
                Ok(Some(ToClient::Refused(refusal))) | Err(refusal) => {
                    return Err(Unwelcome::Refused(refusal));
                }
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
            }
            self.ready(PollFlags::IN, deadline)?;
            if !self.read_some(incoming)? {
                return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into());
            }
        }
    }

    fn ready(&self, flags: PollFlags, deadline: Instant) -> Result<(), Unwelcome> {
        let mut fds = [PollFd::new(&self.stream, flags)];
        let polled = wait_ready(&mut fds, Some(deadline));
        polled.map_err(|e| Unwelcome::Broken(std::io::Error::other(e.to_string())))?;
        if is_ready(&fds[0]) {
            Ok(())
        } else {
            Err(std::io::Error::from(ErrorKind::TimedOut).into())
        }
    }

    /// False at the end of the stream.
    fn read_some(&self, incoming: &mut FrameBuffer) -> std::io::Result<bool> {
        let mut chunk = [0; 1 << 16];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => Ok(false),
            Ok(n) => {
                incoming.push(&chunk[..n]);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    fn read_until_closed(&self, mut incoming: FrameBuffer) {
        let end = self.read_messages(&mut incoming);
        self.requests.close(end);
    }

    fn read_messages(&self, incoming: &mut FrameBuffer) -> Failure {
        loop {
            loop {
                match incoming.next(REPLY_LIMIT) {
                    Ok(None) => break,
                    Ok(Some(message)) => {
                        if let Some(end) = self.requests.receive(message) {
                            return end;
                        }
                    }
                    Err(refusal) => return lost(format!("its store sent {refusal}")),
                }
            }
            let mut fds = [
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(&self.stream, PollFlags::IN),
            ];
            if let Err(e) = wait_ready(&mut fds, None) {
                return lost(e.to_string());
            }
            if is_ready(&fds[0]) {
                return closed_here();
            }
            match self.read_some(incoming) {
                Ok(true) => {}
                Ok(false) => {
                    return lost("the connection to its store closed: the process ended".into());
                }
                Err(e) => return lost(format!("the connection to its store broke: {e}")),
            }
        }
    }
}
