//! The store's wire format, and its server without sockets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::auth::{Challenge, Key};
use crate::job::JobToken;
use crate::store::sessions::{Action, Actions, SessionTable};
use crate::store::wire::{
    Answer, FrameBuffer, GREETING_LIMIT, Greeting, HEADER, Op, REQUEST_LIMIT, Refusal, ToClient,
    ToServer, encode,
};

/// The token of the session's job, which is in the corpus: there is more to break after authentication.
pub const TOKEN: &[u8] = b"fuzzing token";
/// What every connection is challenged with, so that greetings of the corpus are answers to it.
const CHALLENGE: Challenge = [7; 32];
/// Bytes of one read of a socket, here.
const CHUNK: usize = 300;

/// Bytes as frames of either direction. The first byte chooses where they are cut: a cut must change nothing.
pub fn frames(data: &[u8]) {
    let Some((&cut, bytes)) = data.split_first() else {
        return;
    };
    both_ways::<ToServer>(bytes, usize::from(cut) + 1);
    both_ways::<ToClient>(bytes, usize::from(cut) + 1);
}

fn both_ways<T: Serialize + DeserializeOwned>(bytes: &[u8], chunk: usize) {
    let whole = take_all::<T>(&mut bytes.chunks(bytes.len().max(1)));
    let cut = take_all::<T>(&mut bytes.chunks(chunk));
    assert_eq!(whole, cut, "a cut changes what is read");
}

/// Every message in its canonical form, and the refusal that ended them.
fn take_all<T: Serialize + DeserializeOwned>(
    chunks: &mut dyn Iterator<Item = &[u8]>,
) -> (Vec<Vec<u8>>, Option<Refusal>) {
    let (mut incoming, mut messages) = (FrameBuffer::default(), Vec::new());
    for chunk in chunks {
        incoming.push(chunk);
        loop {
            match incoming.next::<T>(REQUEST_LIMIT) {
                Ok(Some(message)) => {
                    let frame = encode(&message, "again", REQUEST_LIMIT)
                        .expect("what was read is no longer than its frame");
                    let mut again = FrameBuffer::default();
                    again.push(&frame);
                    let message: T = again
                        .next(REQUEST_LIMIT)
                        .expect("an own frame is well formed")
                        .expect("and whole");
                    let twice = encode(&message, "again", REQUEST_LIMIT).expect("as above");
                    assert_eq!(frame, twice);
                    messages.push(frame);
                }
                Ok(None) => break,
                Err(refusal) => return (messages, Some(refusal)),
            }
        }
        assert!(
            incoming.held() < HEADER + REQUEST_LIMIT,
            "more than one frame"
        );
    }
    (messages, None)
}

/// Hostile connections to a server with two honest ranks of three, which must be served whatever arrives.
///
/// `data` is a list of (connection, length, bytes): one byte, two bytes (little endian), as many as there
/// are. Length 0 closes the connection; at length 0xffff all deadlines come.
pub fn session(data: &[u8]) {
    let mut harness = Harness::new();
    harness.honest();
    let mut rest = data;
    while let [connection, low, high, more @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let connection = 10 + u64::from(connection % 4);
        if length == usize::from(u16::MAX) {
            harness.now += Duration::from_secs(100_000);
            let actions = harness.sessions.expire(harness.now);
            harness.deliver(actions);
            rest = more;
            continue;
        }
        let (bytes, more) = more.split_at(length.min(more.len()));
        rest = more;
        if length == 0 {
            harness.hang_up(connection);
        } else {
            bytes
                .chunks(CHUNK)
                .for_each(|b| harness.feed(connection, b));
        }
    }
    harness.honest();
}

/// The greeting of a rank of three.
pub fn hello(rank: u32) -> ToServer {
    ToServer::Hello(Greeting::new(
        &Key::new(TOKEN),
        (rank, 3),
        CHALLENGE,
        CHALLENGE,
    ))
}

struct Harness {
    sessions: SessionTable,
    buffers: BTreeMap<u64, FrameBuffer>,
    closed: Vec<u64>,
    answers: Vec<(u64, Answer)>,
    now: Instant,
    next: u64,
}

impl Harness {
    fn new() -> Self {
        let token = JobToken::new(TOKEN).expect("long enough");
        let mut harness = Self {
            sessions: SessionTable::new(3, token),
            buffers: BTreeMap::new(),
            closed: Vec::new(),
            answers: Vec::new(),
            now: Instant::now(),
            next: 1 << 40,
        };
        for rank in 0..2 {
            harness.sessions.accept(rank.into(), CHALLENGE);
            let hello = hello(rank);
            let actions = harness.sessions.handle(rank.into(), hello, harness.now);
            assert_eq!(actions.len(), 2, "admitted and welcomed");
        }
        harness
    }

    /// Handles received bytes as the server does.
    fn feed(&mut self, connection: u64, bytes: &[u8]) {
        if self.closed.contains(&connection) {
            return;
        }
        if !self.buffers.contains_key(&connection) {
            let actions = self.sessions.accept(connection, CHALLENGE);
            self.deliver(actions);
        }
        self.buffers.entry(connection).or_default().push(bytes);
        while let Some(incoming) = self.buffers.get_mut(&connection) {
            let limit = self.sessions.limit(connection);
            let actions = match incoming.next(limit) {
                Ok(Some(message)) => self.sessions.handle(connection, message, self.now),
                Ok(None) => break,
                Err(refusal) => self.sessions.refuse(connection, refusal),
            };
            self.deliver(actions);
        }
        let (held, limit) = (
            self.buffers.get(&connection).map_or(0, FrameBuffer::held),
            self.sessions.limit(connection),
        );
        assert!(held < HEADER + limit, "{held} bytes are held");
        assert!(limit == GREETING_LIMIT || limit == REQUEST_LIMIT);
    }

    fn hang_up(&mut self, connection: u64) {
        self.buffers.remove(&connection);
        self.closed.retain(|&c| c != connection);
        let actions = self.sessions.disconnected(connection, "hung up");
        self.deliver(actions);
    }

    fn deliver(&mut self, actions: Actions) {
        for action in actions {
            match action {
                Action::Admit(_) => {}
                Action::Close(connection) => {
                    self.buffers.remove(&connection);
                    self.closed.push(connection);
                }
                Action::Send(connection, message) => {
                    encode(&message, "reply", crate::store::wire::REPLY_LIMIT)
                        .expect("every answer fits a frame");
                    if let ToClient::Reply { answer, .. } = message {
                        self.answers.push((connection, answer));
                    }
                }
            }
        }
    }

    fn ask(&mut self, rank: u64, op: Op) -> Option<Answer> {
        self.next += 1;
        let request = ToServer::Request {
            id: self.next,
            timeout_ms: 1000,
            op,
        };
        self.answers.clear();
        let actions = self.sessions.handle(rank, request, self.now);
        self.deliver(actions);
        let own = |(to, answer): (u64, Answer)| (to == rank).then_some(answer);
        std::mem::take(&mut self.answers).into_iter().find_map(own)
    }

    /// The two honest ranks are served whatever else happens.
    fn honest(&mut self) {
        assert_eq!(self.ask(0, Op::Ping), Some(Answer::Done));
        let key = format!("honest {}", self.next);
        let value = self.next.to_le_bytes().to_vec();
        let set = Op::Set {
            key: key.clone(),
            value: value.clone(),
        };
        assert_eq!(self.ask(0, set), Some(Answer::Done));
        assert_eq!(self.ask(1, Op::Get { key }), Some(Answer::Value(value)));
    }
}
