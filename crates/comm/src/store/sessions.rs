//! The server's session table: which rank owns each connection, and how each message is handled. No sockets
//! here.
//!
//! A connection is sent a challenge, and is unauthenticated until a greeting that proves the job's token
//! admits a rank. Every call returns the actions for the sockets, in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use warpweave_symm_mem::backend::LONGEST_TIMEOUT;

use super::effect::{Effect, Waiter};
use super::state::State;
use super::wire::{GREETING_LIMIT, Greeting, REQUEST_LIMIT, Refusal, ToClient, ToServer};
use crate::auth::{Challenge, Key, Proof};
use crate::job::JobToken;

/// An action for the server's sockets.
#[derive(Debug)]
pub(crate) enum Action {
    /// The connection belongs to a rank from now on.
    Admit(u64),
    Send(u64, ToClient),
    /// Stop reading, flush, close.
    Close(u64),
}

impl Action {
    fn connection(&self) -> &u64 {
        match self {
            Action::Admit(id) | Action::Send(id, _) | Action::Close(id) => id,
        }
    }
}

pub(crate) type Actions = VecDeque<Action>;

pub(crate) struct SessionTable {
    key: Key,
    /// Whether the token is one that only the job's ranks know.
    is_secret: bool,
    state: State,
    /// What each connection that has not been admitted was sent.
    challenges: BTreeMap<u64, Challenge>,
    /// Rank of each admitted connection.
    by_connection: BTreeMap<u64, usize>,
    /// Connection of each joined rank.
    ranks: BTreeMap<usize, u64>,
}

impl SessionTable {
    pub(crate) fn new(world: usize, token: JobToken) -> Self {
        Self {
            key: Key::new(token.as_bytes()),
            is_secret: token.is_secret(),
            state: State::new(world),
            challenges: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            ranks: BTreeMap::new(),
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The largest message that this connection may send.
    pub(crate) fn limit(&self, connection: u64) -> usize {
        match self.by_connection.get(&connection) {
            Some(_) => REQUEST_LIMIT,
            None => GREETING_LIMIT,
        }
    }

    /// Whether to refuse other users of this host before reading their greeting: a token that is not secret
    /// proves nothing.
    pub(super) fn requires_same_user(&self) -> bool {
        !self.is_secret
    }

    /// A new connection, for which `challenge` was drawn.
    pub(crate) fn accept(&mut self, connection: u64, challenge: Challenge) -> Actions {
        self.challenges.insert(connection, challenge);
        Actions::from([Action::Send(connection, ToClient::Challenge(challenge))])
    }

    pub(crate) fn handle(&mut self, connection: u64, message: ToServer, now: Instant) -> Actions {
        let effects = match (self.by_connection.get(&connection).copied(), message) {
            (None, ToServer::Hello(greeting)) => {
                return match self.admit(connection, &greeting) {
                    Ok(proof) => self.welcome(connection, greeting.rank as usize, proof),
                    Err(refusal) => self.refuse(connection, refusal),
                };
            }
            (Some(rank), ToServer::Request { id, timeout_ms, op }) => {
                let deadline = now + Duration::from_millis(timeout_ms).min(LONGEST_TIMEOUT);
                // This thread may have been stopped until after a deadline, at which a rank gave up.
                let mut effects = self.state.expire(now);
                effects.extend(self.state.request(Waiter { rank, id, deadline }, op));
                effects
            }
            (Some(rank), ToServer::Goodbye) => {
                self.end_session(connection);
                let effects = self.state.leave(rank);
                let mut actions = self.actions_for(effects);
                actions.push_front(Action::Close(connection));
                return actions;
            }
            _ => return self.refuse(connection, Refusal::Malformed),
        };
        self.actions_for(effects)
    }

    /// This end's proof to a connection that has proved itself.
    fn admit(&mut self, connection: u64, greeting: &Greeting) -> Result<Proof, Refusal> {
        let challenge = self
            .challenges
            .remove(&connection)
            .ok_or(Refusal::Malformed)?;
        if !greeting.is_proved(&self.key, challenge) {
            return Err(Refusal::Token);
        }
        if greeting.world as usize != self.state.world() {
            return Err(Refusal::World {
                store: self.state.world() as u32,
            });
        }
        self.state.join(greeting.rank as usize)?;
        Ok(self.key.host(&greeting.challenges(challenge)))
    }

    fn welcome(&mut self, connection: u64, rank: usize, proof: Proof) -> Actions {
        self.by_connection.insert(connection, rank);
        self.ranks.insert(rank, connection);
        let mut actions = Actions::from([
            Action::Admit(connection),
            Action::Send(connection, ToClient::Welcome(proof)),
        ]);
        actions.extend(
            self.state
                .failure()
                .map(|f| Action::Send(connection, ToClient::Failed(f.clone()))),
        );
        actions
    }

    /// Sends the reason and closes. A rank that breaks the protocol counts as lost.
    pub(crate) fn refuse(&mut self, connection: u64, refusal: Refusal) -> Actions {
        let mut actions = self.disconnected(connection, &format!("it sent {refusal}"));
        actions.push_front(Action::Close(connection));
        actions.push_front(Action::Send(connection, ToClient::Refused(refusal)));
        actions
    }

    /// The connection broke without a goodbye.
    pub(crate) fn disconnected(&mut self, connection: u64, cause: &str) -> Actions {
        self.challenges.remove(&connection);
        match self.end_session(connection) {
            Some(rank) => {
                let effects = self.state.lose(rank, cause);
                self.actions_for(effects)
            }
            None => Actions::new(),
        }
    }

    /// Times out the waits whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) -> Actions {
        let effects = self.state.expire(now);
        self.actions_for(effects)
    }

    /// The store shuts down cleanly.
    pub(super) fn close(&mut self) -> Actions {
        self.ranks
            .values()
            .map(|&connection| Action::Send(connection, ToClient::Closing))
            .collect()
    }

    fn end_session(&mut self, connection: u64) -> Option<usize> {
        let rank = self.by_connection.remove(&connection)?;
        self.ranks.remove(&rank);
        Some(rank)
    }

    fn actions_for(&self, effects: Vec<Effect>) -> Actions {
        let mut actions = Actions::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Answer { rank, id, answer } => {
                    actions.extend(
                        self.ranks
                            .get(&rank)
                            .map(|&c| Action::Send(c, ToClient::Reply { id, answer })),
                    );
                }
                Effect::Broadcast(failure) => actions.extend(
                    self.ranks
                        .values()
                        .map(|&c| Action::Send(c, ToClient::Failed(failure.clone()))),
                ),
            }
        }
        // This process is rank 0's and may exit on its own message, so the others are served first.
        let own = self.ranks.get(&0);
        actions
            .make_contiguous()
            .sort_by_key(|action| Some(action.connection()) == own);
        actions
    }
}

#[cfg(test)]
impl SessionTable {
    /// All ranks have been admitted, each on the connection of its number.
    pub(super) fn of_members(world: usize) -> Self {
        let mut state = State::new(world);
        (0..world).for_each(|rank| state.join(rank).unwrap());
        Self {
            key: Key::new(b"token"),
            is_secret: true,
            state,
            challenges: BTreeMap::new(),
            by_connection: (0..world).map(|rank| (rank as u64, rank)).collect(),
            ranks: (0..world).map(|rank| (rank, rank as u64)).collect(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::wire::{Answer, Op};
    use super::*;

    /// The thread of the store was stopped, and finds the last rank's request before it finds the deadline.
    #[test]
    fn a_request_after_a_deadline_does_not_complete_the_gather() {
        let mut sessions = SessionTable::of_members(2);
        let start = Instant::now();
        let request = || ToServer::Request {
            id: 1,
            timeout_ms: 1000,
            op: Op::AllGather {
                scope: "s".into(),
                call: 0,
                tag: "x".into(),
                bytes: Vec::new(),
            },
        };
        assert!(sessions.handle(1, request(), start).is_empty());
        let later = start + Duration::from_secs(10);
        let actions = sessions.handle(0, request(), later);
        let answers: Vec<_> = actions
            .iter()
            .map(|action| match action {
                Action::Send(to, ToClient::Reply { answer, .. }) => (*to, answer),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(
            matches!(
                answers[..],
                [(1, Answer::TimedOut { .. }), (0, Answer::Failed(_))]
            ),
            "{answers:?}"
        );
    }
}
