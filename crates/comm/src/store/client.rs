//! A rank's connection to the store: requests from any thread, answers sorted by one reader thread.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags};

use super::wake::{Bell, is_ready, wait_ready};
use super::wire::{
    Answer, Failure, FailureKind, Inbox, Op, REPLY_LIMIT, REQUEST_LIMIT, Refusal, ToClient,
    ToServer, encode,
};
use crate::error::{CommError, Result};

/// What the server's word on a deadline may take to arrive. After it the store itself is taken for stalled.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Client {
    rank: usize,
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

struct Shared {
    stream: TcpStream,
    writing: Mutex<()>,
    replies: Mutex<Replies>,
    arrived: Condvar,
    stop: Bell,
    failed: Bell,
}

#[derive(Default)]
struct Replies {
    next: u64,
    /// By request; `None` until it is answered.
    answers: HashMap<u64, Option<Answer>>,
    /// The first failure of the job that this rank heard of.
    failure: Option<Failure>,
    /// No answer will come any more. `failure` says why, and is the root cause where that was heard before the end.
    closed: bool,
}

impl Client {
    /// Greets the store on a fresh connection.
    pub(super) fn join(
        stream: TcpStream,
        address: &str,
        (rank, world): (usize, usize),
        token: &[u8],
        deadline: Instant,
    ) -> Result<Self> {
        let failed = |e| CommError::io(format!("talking to the store at {address}"), e);
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        super::connection::keep_alive(&stream);
        let shared = Arc::new(Shared {
            stream,
            writing: Mutex::new(()),
            replies: Mutex::default(),
            arrived: Condvar::new(),
            stop: Bell::new()?,
            failed: Bell::new()?,
        });
        let hello = ToServer::Hello {
            token: token.to_vec(),
            rank: rank as u32,
            world: world as u32,
        };
        let mut inbox = Inbox::default();
        shared
            .send(&encode(&hello, "greeting", REQUEST_LIMIT)?, deadline)
            .and_then(|()| shared.welcome(&mut inbox, deadline))
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
                .spawn(move || shared.read_until_closed(inbox))
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

    /// Asks and waits for the answer, which the server gives by `timeout`. `what` names the request in errors.
    pub(super) fn ask(&self, what: &str, op: Op, timeout: Duration) -> Result<Answer> {
        let start = Instant::now();
        let deadline = start + timeout + GRACE;
        let id = {
            let mut replies = self.shared.replies.lock();
            if let (true, Some(failure)) = (replies.closed, &replies.failure) {
                return Err(self.ended_by(failure, what));
            }
            replies.next += 1;
            let id = replies.next;
            replies.answers.insert(id, None);
            id
        };
        let request = ToServer::Request {
            id,
            timeout_ms: timeout.as_millis() as u64,
            op,
        };
        let sent = encode(&request, what, REQUEST_LIMIT).and_then(|frame| {
            self.shared
                .send(&frame, deadline)
                .map_err(|e| e.into_error(what))
        });
        let mut replies = self.shared.replies.lock();
        let answer = loop {
            if let Some(answer) = replies.answers.get_mut(&id).and_then(Option::take) {
                break Ok(answer);
            }
            if let (true, Some(failure)) = (replies.closed, &replies.failure) {
                break Err(self.ended_by(failure, what));
            }
            // The reader learns why the connection broke, unless the message was never sent for its own sake.
            if matches!(
                sent,
                Err(CommError::TooLarge { .. } | CommError::Protocol { .. })
            ) {
                break Ok(Answer::Done);
            }
            if self
                .shared
                .arrived
                .wait_until(&mut replies, deadline)
                .timed_out()
            {
                break Err(CommError::Timeout {
                    rank: self.rank,
                    what: format!("{what} (the store on rank 0 does not answer)"),
                    waiting_for: vec![0],
                    after: start.elapsed(),
                });
            }
        };
        replies.answers.remove(&id);
        drop(replies);
        match (answer?, sent) {
            (_, Err(e @ (CommError::TooLarge { .. } | CommError::Protocol { .. }))) => Err(e),
            (Answer::TimedOut { waiting_for }, _) => Err(CommError::Timeout {
                rank: self.rank,
                what: what.into(),
                waiting_for: waiting_for.into_iter().map(|r| r as usize).collect(),
                after: start.elapsed(),
            }),
            (Answer::Failed(failure), _) => Err(self.ended_by(&failure, what)),
            (Answer::Mismatch { rank, theirs }, _) => Err(CommError::Mismatch {
                rank: self.rank,
                mine: what.into(),
                peer: rank as usize,
                theirs,
            }),
            (Answer::Rejected(why), _) => Err(CommError::Rejected {
                rank: self.rank,
                what: what.into(),
                why,
            }),
            (answer, _) => Ok(answer),
        }
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.shared.replies.lock().failure.clone()
    }

    pub(super) fn failed(&self) -> BorrowedFd<'_> {
        self.shared.failed.as_fd()
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

impl Drop for Client {
    fn drop(&mut self) {
        if let Ok(frame) = encode(&ToServer::Goodbye, "goodbye", REQUEST_LIMIT) {
            let _ = self
                .shared
                .send(&frame, Instant::now() + Duration::from_millis(200));
        }
        self.shared.stop.ring();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

enum Unwelcome {
    Refused(Refusal),
    Broken(std::io::Error),
}

impl Unwelcome {
    fn into_error(self, what: &str) -> CommError {
        match self {
            Unwelcome::Refused(refusal) => CommError::Protocol {
                what: format!("`{what}`: {refusal}"),
            },
            Unwelcome::Broken(e) => CommError::io(format!("asking the store for `{what}`"), e),
        }
    }
}

impl From<std::io::Error> for Unwelcome {
    fn from(e: std::io::Error) -> Self {
        Unwelcome::Broken(e)
    }
}

impl Shared {
    fn send(&self, frame: &[u8], deadline: Instant) -> Result<(), Unwelcome> {
        let _one_frame_at_a_time = self.writing.lock();
        let mut rest = frame;
        while !rest.is_empty() {
            match (&self.stream).write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.ready(PollFlags::OUT, deadline)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn welcome(&self, inbox: &mut Inbox, deadline: Instant) -> Result<(), Unwelcome> {
        loop {
            match inbox.next(REPLY_LIMIT) {
                Ok(Some(ToClient::Welcome)) => return Ok(()),
                Ok(Some(ToClient::Refused(refusal))) | Err(refusal) => {
                    return Err(Unwelcome::Refused(refusal));
                }
                Ok(Some(_)) => return Err(Unwelcome::Refused(Refusal::Malformed)),
                Ok(None) => {}
            }
            self.ready(PollFlags::IN, deadline)?;
            if !self.read_some(inbox)? {
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
    fn read_some(&self, inbox: &mut Inbox) -> std::io::Result<bool> {
        let mut chunk = [0; 1 << 16];
        match (&self.stream).read(&mut chunk) {
            Ok(0) => Ok(false),
            Ok(n) => {
                inbox.push(&chunk[..n]);
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    fn read_until_closed(&self, mut inbox: Inbox) {
        let closed = self.read_messages(&mut inbox);
        let mut replies = self.replies.lock();
        replies.failure.get_or_insert(closed);
        replies.closed = true;
        drop(replies);
        self.failed.ring();
        self.arrived.notify_all();
    }

    fn read_messages(&self, inbox: &mut Inbox) -> Failure {
        let lost = |cause: String| Failure {
            rank: 0,
            kind: FailureKind::Lost,
            cause,
        };
        loop {
            loop {
                match inbox.next(REPLY_LIMIT) {
                    Ok(None) => break,
                    Ok(Some(ToClient::Closing)) => {
                        let cause = "it closed the job's store".into();
                        return Failure {
                            rank: 0,
                            kind: FailureKind::Left,
                            cause,
                        };
                    }
                    Ok(Some(ToClient::Refused(refusal))) => {
                        return lost(format!("its store ended the connection: {refusal}"));
                    }
                    Ok(Some(message)) => self.take(message),
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
                return lost("this rank has let go of the store".into());
            }
            match self.read_some(inbox) {
                Ok(true) => {}
                Ok(false) => {
                    return lost("the connection to its store closed: the process ended".into());
                }
                Err(e) => return lost(format!("the connection to its store broke: {e}")),
            }
        }
    }

    fn take(&self, message: ToClient) {
        let mut replies = self.replies.lock();
        match message {
            ToClient::Reply { id, answer } => {
                // Nobody waits any more for the answer to a request that was given up.
                if let Some(slot) = replies.answers.get_mut(&id) {
                    *slot = Some(answer);
                }
            }
            ToClient::Failed(failure) => {
                replies.failure.get_or_insert(failure);
                self.failed.ring();
            }
            ToClient::Welcome | ToClient::Refused(_) | ToClient::Closing => {}
        }
        drop(replies);
        self.arrived.notify_all();
    }
}
