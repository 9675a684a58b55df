//! The messages of the store and how they are framed.
//!
//! A frame is eight bytes of header, `W` `W`, the protocol's version and the payload's length (little
//! endian), and then the payload: one message in postcard. A length above the receiver's limit is refused
//! before any of it is read.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use super::refusal::Refusal;
pub(crate) use super::refusal::VERSION;
use crate::auth::{Challenge, Challenges, Key, Proof};
use crate::error::{CommError, Result};

const MAGIC: [u8; 2] = *b"WW";
pub(crate) const HEADER: usize = 8;

/// The largest value of a key, and the largest contribution of a rank to one all-gather, in bytes.
pub const LARGEST_VALUE: usize = 1 << 20;
/// The longest key, tag or message, in bytes.
pub const LONGEST_KEY: usize = 1024;
/// Most bytes that a rank may send in one frame: a value or two with their keys.
pub(crate) const REQUEST_LIMIT: usize = 2 * LARGEST_VALUE + 64 * LONGEST_KEY;
/// Most bytes of a greeting.
pub(crate) const GREETING_LIMIT: usize = 512;
/// Most bytes of an answer: an all-gather's result.
pub(crate) const REPLY_LIMIT: usize = 64 << 20;

/// From a rank to the store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToServer {
    /// Answers the store's challenge.
    Hello(Greeting),
    Request {
        id: u64,
        timeout_ms: u64,
        op: Op,
    },
    Goodbye,
}

/// Who asks to be admitted, and the proof that it knows the job's token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub rank: u32,
    pub world: u32,
    pub challenge: Challenge,
    pub proof: Proof,
}

impl Greeting {
    /// The answer to the `host`'s challenge.
    pub(crate) fn new(
        key: &Key,
        (rank, world): (u32, u32),
        host: Challenge,
        challenge: Challenge,
    ) -> Self {
        let mut greeting = Self {
            rank,
            world,
            challenge,
            proof: Proof::default(),
        };
        greeting.proof = key.guest(&greeting.challenges(host), &greeting.purpose());
        greeting
    }

    pub(crate) fn is_proved(&self, key: &Key, host: Challenge) -> bool {
        key.admits(&self.challenges(host), &self.purpose(), self.proof)
    }

    pub(crate) fn challenges(&self, host: Challenge) -> Challenges {
        Challenges {
            host,
            guest: self.challenge,
        }
    }

    fn purpose(&self) -> [u8; 8] {
        (u64::from(self.rank) << 32 | u64::from(self.world)).to_le_bytes()
    }
}

/// A request of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Op {
    Set {
        key: String,
        value: Vec<u8>,
    },
    /// Waits until the key is there.
    Get {
        key: String,
    },
    Wait {
        keys: Vec<String>,
    },
    Add {
        key: String,
        delta: i64,
    },
    CompareAndSet {
        key: String,
        expected: Option<Vec<u8>>,
        value: Vec<u8>,
    },
    /// The `call`-th all-gather of its scope. A barrier is one of no bytes.
    AllGather {
        scope: String,
        call: u64,
        tag: String,
        bytes: Vec<u8>,
    },
    Abort {
        message: String,
    },
    Ping,
}

/// From the store to a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToClient {
    /// Sent on every connection first.
    Challenge(Challenge),
    /// The store's own proof.
    Welcome(Proof),
    Refused(Refusal),
    Reply {
        id: u64,
        answer: Answer,
    },
    /// Sent without a request: the job has failed.
    Failed(Failure),
    /// The store ends in good order.
    Closing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Value(Vec<u8>),
    Number(i64),
    /// Whether it was stored, and what the key holds now.
    Swapped {
        stored: bool,
        current: Option<Vec<u8>>,
    },
    Gathered(Gathered),
    TimedOut {
        waiting_for: Vec<u32>,
    },
    Failed(Failure),
    Mismatch {
        rank: u32,
        theirs: String,
    },
    Rejected(String),
}

/// The contributions of all ranks, encoded once for all of them.
#[derive(Clone, PartialEq)]
pub(crate) struct Gathered(Shared);

impl Gathered {
    pub(crate) fn new(all: &[Vec<u8>]) -> Self {
        // Bytes in memory can always be encoded.
        Self(postcard::to_stdvec(all).unwrap_or_default().into())
    }

    /// By rank; `None` for what a store would not send.
    pub(crate) fn decode(&self) -> Option<Vec<Vec<u8>>> {
        postcard::from_bytes(&self.0).ok()
    }
}

impl fmt::Debug for Gathered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gathered({} bytes)", self.0.len())
    }
}

impl Serialize for Gathered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Gathered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Read as a list of bytes, which postcard writes alike.
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Ok(Self(bytes.into()))
    }
}

/// Why a job cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that caused it.
    pub rank: u32,
    /// How.
    pub kind: FailureKind,
    /// What was seen, or the rank's own message.
    pub cause: String,
}

/// How a rank came to end the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Its connection broke: it was killed, or its host went.
    Lost,
    /// It aborted the job.
    Aborted,
    /// It left while others still needed it.
    Left,
}

/// Bytes that go out on several connections.
pub(crate) type Shared = Arc<[u8]>;

/// From so many bytes on, what was gathered is not copied into each rank's frame. Less goes out with its
/// header in one packet.
const SHARED_FROM: usize = 1024;

/// A frame for `message`: what is one rank's own, and after it what all ranks that get it share.
pub(crate) fn encode_reply(message: &ToClient) -> Result<(Vec<u8>, Option<Shared>)> {
    let (id, all) = match message {
        ToClient::Reply {
            id,
            answer: Answer::Gathered(all),
        } if all.0.len() >= SHARED_FROM => (*id, &all.0),
        _ => return Ok((encode(message, "reply", REPLY_LIMIT)?, None)),
    };
    // The same reply of nothing ends in a length of zero, one byte.
    let answer = Answer::Gathered(Gathered(Arc::new([])));
    let mut own = encode(&ToClient::Reply { id, answer }, "reply", REPLY_LIMIT)?;
    own.pop();
    let own = postcard::to_extend(&all.len(), own).map_err(|e| CommError::Protocol {
        what: format!("a length cannot be encoded: {e}"),
    })?;
    Ok((
        sized(own, all.len(), "reply", REPLY_LIMIT)?,
        Some(all.clone()),
    ))
}

/// A whole frame for `message`.
pub(crate) fn encode<T: Serialize>(message: &T, what: &str, limit: usize) -> Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(64);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&VERSION.to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    let frame = postcard::to_extend(message, frame).map_err(|e| CommError::Protocol {
        what: format!("`{what}` cannot be encoded: {e}"),
    })?;
    sized(frame, 0, what, limit)
}

/// The frame with its size in the header; `more` bytes of it follow.
fn sized(mut frame: Vec<u8>, more: usize, what: &str, limit: usize) -> Result<Vec<u8>> {
    let size = frame.len() - HEADER + more;
    if size > limit {
        return Err(CommError::TooLarge {
            what: what.into(),
            size,
            limit,
        });
    }
    frame[4..HEADER].copy_from_slice(&(size as u32).to_le_bytes());
    Ok(frame)
}

/// Splits the received bytes into messages.
#[derive(Default)]
pub(crate) struct FrameBuffer {
    bytes: Vec<u8>,
    /// How much of `bytes` has been consumed: many small messages of one read cost no copy each.
    taken: usize,
}

impl FrameBuffer {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether all bytes of a message are there, which may still be refused.
    pub(crate) fn has_message(&self) -> bool {
        let rest = &self.bytes[self.taken..];
        rest.first_chunk::<HEADER>()
            .is_some_and(|&[.., l0, l1, l2, l3]| {
                rest.len() - HEADER >= u32::from_le_bytes([l0, l1, l2, l3]) as usize
            })
    }

    /// Bytes of an incomplete message.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn held(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// The next complete message, if there is one.
    pub(crate) fn next<T: DeserializeOwned>(&mut self, limit: usize) -> Result<Option<T>, Refusal> {
        let rest = &self.bytes[self.taken..];
        let Some(header) = rest.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [m0, m1, v0, v1, l0, l1, l2, l3] = *header;
        if [m0, m1] != MAGIC {
            return Err(Refusal::Malformed);
        }
        if u16::from_le_bytes([v0, v1]) != VERSION {
            return Err(Refusal::Version { store: VERSION });
        }
        let size = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if size > limit {
            return Err(Refusal::TooLarge {
                limit: limit as u32,
            });
        }
        let Some(payload) = rest.get(HEADER..HEADER + size) else {
            return Ok(None);
        };
        let (message, spare) =
            postcard::take_from_bytes(payload).map_err(|_| Refusal::Malformed)?;
        if !spare.is_empty() {
            return Err(Refusal::Malformed);
        }
        self.taken += HEADER + size;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ToServer {
        ToServer::Request {
            id: 7,
            timeout_ms: 9,
            op: Op::Set {
                key: "k".into(),
                value: vec![1, 2, 3],
            },
        }
    }

    #[test]
    fn a_message_survives_being_cut_anywhere() {
        let frame = encode(&sample(), "set", 100).unwrap();
        for cut in 0..=frame.len() {
            let mut incoming = FrameBuffer::default();
            incoming.push(&frame[..cut]);
            let early: Option<ToServer> = incoming.next(100).unwrap();
            assert_eq!(early.is_some(), cut == frame.len());
            incoming.push(&frame[cut..]);
            incoming.push(&frame[..3]);
            let message = early.or_else(|| incoming.next(100).unwrap());
            assert!(matches!(
                message,
                Some(ToServer::Request {
                    id: 7,
                    timeout_ms: 9,
                    ..
                })
            ));
        }
    }

    #[test]
    fn a_greeting_proves_the_token_and_does_not_have_it() {
        let (key, host) = (Key::new(b"the job's secret"), [1; 32]);
        let greeting = Greeting::new(&key, (1, 2), host, [2; 32]);
        assert!(greeting.is_proved(&key, host));
        assert!(!greeting.is_proved(&key, [3; 32]), "of another connection");
        let other = Greeting {
            rank: 0,
            ..greeting.clone()
        };
        assert!(!other.is_proved(&key, host), "of another rank");
        let frame = encode(&ToServer::Hello(greeting), "greeting", GREETING_LIMIT).unwrap();
        let secret = b"the job's secret";
        assert!(!frame.windows(secret.len()).any(|part| part == secret));
    }

    #[test]
    fn what_was_gathered_is_encoded_once() {
        let all = vec![vec![1, 2], vec![], vec![3]];
        let gathered = Gathered::new(&all);
        assert_eq!(gathered.decode().unwrap(), all);
        let answer = Answer::Gathered(gathered.clone());
        let Answer::Gathered(again) = answer.clone() else {
            panic!("{answer:?}")
        };
        assert!(Arc::ptr_eq(&gathered.0, &again.0));
        let bytes = postcard::to_stdvec(&answer).unwrap();
        assert_eq!(postcard::from_bytes::<Answer>(&bytes).unwrap(), answer);
    }

    #[test]
    fn a_reply_in_two_parts_is_the_frame_of_the_whole() {
        for bytes in [0, 1, 100, SHARED_FROM - 10, SHARED_FROM, 20_000] {
            let gathered = Gathered::new(&[vec![7; bytes], vec![], vec![8]]);
            let reply = ToClient::Reply {
                id: 300,
                answer: Answer::Gathered(gathered.clone()),
            };
            let (own, shared) = encode_reply(&reply).unwrap();
            if let Some(shared) = &shared {
                assert!(Arc::ptr_eq(shared, &gathered.0));
                assert!(own.len() < 32);
            }
            assert_eq!(shared.is_some(), gathered.0.len() >= SHARED_FROM);
            let whole = encode(&reply, "reply", REPLY_LIMIT).unwrap();
            assert!([own, shared.unwrap_or_default().to_vec()].concat() == whole);
        }
    }

    #[test]
    fn bytes_after_a_message_in_its_frame_are_refused() {
        let mut frame = encode(&ToServer::Goodbye, "goodbye", 100).unwrap();
        frame[4] += 1;
        frame.push(0);
        let mut incoming = FrameBuffer::default();
        incoming.push(&frame);
        assert_eq!(
            incoming.next::<ToServer>(100).err(),
            Some(Refusal::Malformed)
        );
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let frame = encode(&sample(), "set", 100).unwrap();
        let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = frame.clone();
            change(&mut bytes);
            let mut incoming = FrameBuffer::default();
            incoming.push(&bytes);
            incoming.next::<ToServer>(100).err()
        };
        assert_eq!(refusal(&|b| b[0] = b'X'), Some(Refusal::Malformed));
        assert_eq!(
            refusal(&|b| b[2] = 9),
            Some(Refusal::Version { store: VERSION })
        );
        assert_eq!(
            refusal(&|b| b[4..8].fill(0xff)),
            Some(Refusal::TooLarge { limit: 100 })
        );
        assert_eq!(refusal(&|b| b[8] = 200), Some(Refusal::Malformed));
        assert!(matches!(
            encode(&sample(), "set", 3),
            Err(CommError::TooLarge { limit: 3, .. })
        ));
    }
}
