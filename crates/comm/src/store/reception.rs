//! The server's side of the protocol without its sockets: whose connection it is, and what each message leads to.
//!
//! A connection is a stranger's until a greeting with the job's token seats a rank there. Every call returns what is to
//! be done with the sockets, in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use warpweave_symm_mem::backend::LONGEST_TIMEOUT;

use super::state::{Effect, State, Waiter};
use super::wire::{GREETING_LIMIT, REQUEST_LIMIT, Refusal, ToClient, ToServer};
use crate::job::JobToken;

/// What the sockets are to do.
#[derive(Debug)]
pub(crate) enum Post {
    /// The connection is a rank's from now on.
    Seat(u64),
    Send(u64, ToClient),
    /// Read no more, deliver what was sent, and close.
    Part(u64),
}

impl Post {
    fn connection(&self) -> &u64 {
        match self {
            Post::Seat(id) | Post::Send(id, _) | Post::Part(id) => id,
        }
    }
}

pub(crate) type Posts = VecDeque<Post>;

pub(crate) struct Reception {
    token: JobToken,
    state: State,
    /// Rank of each connection that has one.
    seats: BTreeMap<u64, usize>,
    /// Connection of each rank that is here.
    ranks: BTreeMap<usize, u64>,
}

impl Reception {
    pub(crate) fn new(world: usize, token: JobToken) -> Self {
        Self {
            token,
            state: State::new(world),
            seats: BTreeMap::new(),
            ranks: BTreeMap::new(),
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The largest message that this connection may send.
    pub(crate) fn limit(&self, connection: u64) -> usize {
        match self.seats.get(&connection) {
            Some(_) => REQUEST_LIMIT,
            None => GREETING_LIMIT,
        }
    }

    /// Whether connections of other users of this host are to be turned away before they are heard: a token that is no
    /// secret proves nothing.
    pub(super) fn wants_own_user(&self) -> bool {
        !self.token.is_secret()
    }

    pub(crate) fn heed(&mut self, connection: u64, message: ToServer, now: Instant) -> Posts {
        let effects = match (self.seats.get(&connection).copied(), message) {
            (None, ToServer::Hello { token, rank, world }) => {
                return match self.admit(token.bytes(), rank, world) {
                    Ok(rank) => self.welcome(connection, rank),
                    Err(refusal) => self.refuse(connection, refusal),
                };
            }
            (Some(rank), ToServer::Request { id, timeout_ms, op }) => {
                let deadline = now + Duration::from_millis(timeout_ms).min(LONGEST_TIMEOUT);
                self.state.request(Waiter { rank, id, deadline }, op)
            }
            (Some(rank), ToServer::Goodbye) => {
                self.unseat(connection);
                let effects = self.state.leave(rank);
                let mut posts = self.carry_out(effects);
                posts.push_front(Post::Part(connection));
                return posts;
            }
            _ => return self.refuse(connection, Refusal::Malformed),
        };
        self.carry_out(effects)
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

    fn welcome(&mut self, connection: u64, rank: usize) -> Posts {
        self.seats.insert(connection, rank);
        self.ranks.insert(rank, connection);
        let mut posts = Posts::from([
            Post::Seat(connection),
            Post::Send(connection, ToClient::Welcome),
        ]);
        posts.extend(
            self.state
                .failure()
                .map(|f| Post::Send(connection, ToClient::Failed(f.clone()))),
        );
        posts
    }

    /// Says why, and lets go. A rank that breaks the protocol is lost to the job.
    pub(crate) fn refuse(&mut self, connection: u64, refusal: Refusal) -> Posts {
        let mut posts = self.gone(connection, &format!("it sent {refusal}"));
        posts.push_front(Post::Part(connection));
        posts.push_front(Post::Send(connection, ToClient::Refused(refusal)));
        posts
    }

    /// The connection broke without a goodbye.
    pub(crate) fn gone(&mut self, connection: u64, cause: &str) -> Posts {
        match self.unseat(connection) {
            Some(rank) => {
                let effects = self.state.lose(rank, cause);
                self.carry_out(effects)
            }
            None => Posts::new(),
        }
    }

    /// Ends the waits whose deadline has come.
    pub(crate) fn expire(&mut self, now: Instant) -> Posts {
        let effects = self.state.expire(now);
        self.carry_out(effects)
    }

    /// The store ends in good order.
    pub(super) fn close(&mut self) -> Posts {
        self.ranks
            .values()
            .map(|&connection| Post::Send(connection, ToClient::Closing))
            .collect()
    }

    fn unseat(&mut self, connection: u64) -> Option<usize> {
        let rank = self.seats.remove(&connection)?;
        self.ranks.remove(&rank);
        Some(rank)
    }

    fn carry_out(&self, effects: Vec<Effect>) -> Posts {
        let mut posts = Posts::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Answer { rank, id, answer } => {
                    posts.extend(
                        self.ranks
                            .get(&rank)
                            .map(|&c| Post::Send(c, ToClient::Reply { id, answer })),
                    );
                }
                Effect::Announce(failure) => posts.extend(
                    self.ranks
                        .values()
                        .map(|&c| Post::Send(c, ToClient::Failed(failure.clone()))),
                ),
            }
        }
        // Rank 0, whose process this is, may end at what it hears: the others hear first.
        let own = self.ranks.get(&0);
        posts
            .make_contiguous()
            .sort_by_key(|post| Some(post.connection()) == own);
        posts
    }
}
