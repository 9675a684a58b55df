//! The store's protocol, with no sockets and no clock: who is in the job, what the keys hold, who waits for what.
//!
//! The server feeds it what happened, [`State::join`], [`State::leave`], [`State::lose`], [`State::request`],
//! [`State::expire`], and carries out the [`Effect`]s that each returns. A member's life is
//!
//! ```text
//! Absent ──join──▶ Joined ──leave──▶ Left
//!                    └─────lose────▶ Lost
//! ```
//!
//! and never goes back. The first `lose` or `Abort` is the job's failure: it ends every wait at once, and every later
//! one that would have to wait. A member that left ends the meetings it is missing from, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::rounds::Round;
use super::wire::{Answer, Failure, FailureKind, LARGEST_VALUE, LONGEST_KEY, Op, Refusal};

/// All values together, in bytes, with [`PER_KEY`] for each.
const LARGEST_STORE: usize = 256 << 20;
/// What a key costs beside its own bytes and those of its value.
const PER_KEY: usize = 128;
/// Keys of a rank that may wait to be set, and meetings that it may have come to and others not.
const MOST_WAITS: usize = 256;
/// Keys of one request.
const MOST_KEYS: usize = 1024;

/// What the server must do after a transition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Answer {
        rank: usize,
        id: u64,
        answer: Answer,
    },
    /// Tell every member that has joined.
    Announce(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    Absent,
    Joined,
    Left,
    Lost,
}

/// Who waits: a rank's request, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub rank: usize,
    pub id: u64,
    pub deadline: Instant,
}

impl Waiter {
    pub(super) fn answer(self, answer: Answer) -> Effect {
        Effect::Answer {
            rank: self.rank,
            id: self.id,
            answer,
        }
    }
}

struct KeyWait {
    waiter: Waiter,
    keys: Vec<String>,
    /// Whether the first key's value is wanted, or only that all keys are there.
    value: bool,
}

pub(super) struct State {
    members: Vec<Member>,
    failure: Option<Failure>,
    keys: HashMap<String, Vec<u8>>,
    stored: usize,
    waits: Vec<KeyWait>,
    rounds: BTreeMap<(String, u64), Round>,
}

impl State {
    pub(super) fn new(world: usize) -> Self {
        Self {
            members: vec![Member::Absent; world],
            failure: None,
            keys: HashMap::new(),
            stored: 0,
            waits: Vec::new(),
            rounds: BTreeMap::new(),
        }
    }

    pub(super) fn world(&self) -> usize {
        self.members.len()
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether ranks are still to come, who should hear of the failure that there is.
    pub(super) fn has_news_for_late_ranks(&self) -> bool {
        self.failure.is_some() && self.members.contains(&Member::Absent)
    }

    /// From `Absent` alone.
    pub(super) fn join(&mut self, rank: usize) -> Result<(), Refusal> {
        let member = self.members.get_mut(rank).ok_or(Refusal::Rank)?;
        match member {
            Member::Absent => *member = Member::Joined,
            Member::Joined | Member::Left | Member::Lost => return Err(Refusal::Taken),
        }
        Ok(())
    }

    /// A goodbye; from `Joined` alone.
    pub(super) fn leave(&mut self, rank: usize) -> Vec<Effect> {
        if self.members.get(rank) != Some(&Member::Joined) {
            return Vec::new();
        }
        self.members[rank] = Member::Left;
        self.forget_waits_of(rank);
        let left = departure(rank);
        let effects = self
            .rounds
            .values_mut()
            .filter(|round| !round.has(rank))
            .flat_map(|round| round.end(&left))
            .collect();
        let members = &self.members;
        self.rounds.retain(|_, round| round.is_awaited(members));
        effects
    }

    /// A connection that broke without a goodbye; from `Joined` alone.
    pub(super) fn lose(&mut self, rank: usize, cause: &str) -> Vec<Effect> {
        if self.members.get(rank) != Some(&Member::Joined) {
            return Vec::new();
        }
        self.members[rank] = Member::Lost;
        self.forget_waits_of(rank);
        self.fail(Failure {
            rank: rank as u32,
            kind: FailureKind::Lost,
            cause: cause.into(),
        })
    }

    /// A request of a member that has joined.
    pub(super) fn request(&mut self, waiter: Waiter, op: Op) -> Vec<Effect> {
        if self.members.get(waiter.rank) != Some(&Member::Joined) {
            return Vec::new();
        }
        if let Err(why) = within_bounds(&op) {
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        match op {
            Op::Ping => vec![waiter.answer(Answer::Done)],
            Op::Set { key, value } => self.store(waiter, key, value, Answer::Done),
            Op::Get { key } => self.wait(KeyWait {
                waiter,
                keys: vec![key],
                value: true,
            }),
            Op::Wait { keys } => self.wait(KeyWait {
                waiter,
                keys,
                value: false,
            }),
            Op::Add { key, delta } => self.add(waiter, key, delta),
            Op::CompareAndSet {
                key,
                expected,
                value,
            } => {
                let current = self.keys.get(&key).cloned();
                if current == expected {
                    let answer = Answer::Swapped {
                        stored: true,
                        current: Some(value.clone()),
                    };
                    self.store(waiter, key, value, answer)
                } else {
                    vec![waiter.answer(Answer::Swapped {
                        stored: false,
                        current,
                    })]
                }
            }
            Op::Meet {
                scope,
                call,
                tag,
                bytes,
            } => self.meet(waiter, (scope, call), tag, bytes),
            Op::Abort { message } => {
                let rank = waiter.rank as u32;
                let mut effects = self.fail(Failure {
                    rank,
                    kind: FailureKind::Aborted,
                    cause: message,
                });
                effects.push(waiter.answer(Answer::Done));
                effects
            }
        }
    }

    /// Ends the waits whose deadline has come.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Effect> {
        let (late, rest) = std::mem::take(&mut self.waits)
            .into_iter()
            .partition(|wait| wait.waiter.deadline <= now);
        self.waits = rest;
        let late: Vec<KeyWait> = late;
        late.into_iter()
            .map(|wait| {
                wait.waiter.answer(Answer::TimedOut {
                    waiting_for: Vec::new(),
                })
            })
            .chain(self.rounds.values_mut().flat_map(|round| round.expire(now)))
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waits = self.waits.iter().map(|wait| wait.waiter.deadline);
        waits
            .chain(self.rounds.values().filter_map(Round::next_deadline))
            .min()
    }

    fn fail(&mut self, failure: Failure) -> Vec<Effect> {
        if self.failure.is_some() {
            return Vec::new();
        }
        self.failure = Some(failure.clone());
        let waits = std::mem::take(&mut self.waits).into_iter();
        let rounds = std::mem::take(&mut self.rounds);
        waits
            .map(|wait| wait.waiter.answer(Answer::Failed(failure.clone())))
            .chain(
                rounds
                    .into_values()
                    .flat_map(|mut round| round.end(&failure)),
            )
            .chain([Effect::Announce(failure.clone())])
            .collect()
    }

    fn forget_waits_of(&mut self, rank: usize) {
        self.waits.retain(|wait| wait.waiter.rank != rank);
        self.rounds
            .values_mut()
            .for_each(|round| round.forget_waiter(rank));
    }

    fn add(&mut self, waiter: Waiter, key: String, delta: i64) -> Vec<Effect> {
        let current = match self.keys.get(&key).map(|value| value.as_slice().try_into()) {
            None => 0,
            Some(Ok(bytes)) => i64::from_le_bytes(bytes),
            Some(Err(_)) => {
                return vec![
                    waiter.answer(Answer::Rejected(format!("`{key}` does not hold a number"))),
                ];
            }
        };
        match current.checked_add(delta) {
            Some(sum) => self.store(waiter, key, sum.to_le_bytes().into(), Answer::Number(sum)),
            None => vec![waiter.answer(Answer::Rejected(format!("`{key}` overflows")))],
        }
    }

    fn store(
        &mut self,
        waiter: Waiter,
        key: String,
        value: Vec<u8>,
        answer: Answer,
    ) -> Vec<Effect> {
        let cost = |value: &Vec<u8>| PER_KEY + key.len() + value.len();
        let held = self.keys.get(&key).map_or(0, cost);
        let stored = self.stored - held + cost(&value);
        if stored > LARGEST_STORE {
            let why = format!("the store is full ({LARGEST_STORE} bytes)");
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        self.stored = stored;
        self.keys.insert(key, value);
        let (ready, rest) = std::mem::take(&mut self.waits)
            .into_iter()
            .partition(|wait| wait.keys.iter().all(|key| self.keys.contains_key(key)));
        self.waits = rest;
        let ready: Vec<KeyWait> = ready;
        let mut effects: Vec<_> = ready.iter().map(|wait| self.found(wait)).collect();
        effects.push(waiter.answer(answer));
        effects
    }

    fn found(&self, wait: &KeyWait) -> Effect {
        wait.waiter.answer(if wait.value {
            Answer::Value(self.keys[&wait.keys[0]].clone())
        } else {
            Answer::Done
        })
    }

    fn wait(&mut self, wait: KeyWait) -> Vec<Effect> {
        if wait.keys.iter().all(|key| self.keys.contains_key(key)) {
            return vec![self.found(&wait)];
        }
        if let Some(failure) = &self.failure {
            return vec![wait.waiter.answer(Answer::Failed(failure.clone()))];
        }
        let rank = wait.waiter.rank;
        if self.waits.iter().filter(|w| w.waiter.rank == rank).count() >= MOST_WAITS {
            let why = format!("{MOST_WAITS} requests of this rank wait already");
            return vec![wait.waiter.answer(Answer::Rejected(why))];
        }
        self.waits.push(wait);
        Vec::new()
    }

    fn meet(
        &mut self,
        waiter: Waiter,
        key: (String, u64),
        tag: String,
        bytes: Vec<u8>,
    ) -> Vec<Effect> {
        if let Some(failure) = &self.failure {
            return vec![waiter.answer(Answer::Failed(failure.clone()))];
        }
        let world = self.world();
        let open = self.rounds.values().filter(|r| r.has(waiter.rank)).count();
        if open >= MOST_WAITS {
            let why = format!("{MOST_WAITS} meetings await other ranks already");
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        let round = self
            .rounds
            .entry(key.clone())
            .or_insert_with(|| Round::new(world));
        let mut effects = round.arrive(waiter, tag, bytes);
        let gone = (0..world).find(|&r| self.members[r] == Member::Left && !round.has(r));
        if let Some(rank) = gone {
            effects.extend(round.end(&departure(rank)));
        }
        if !round.is_awaited(&self.members) {
            self.rounds.remove(&key);
        }
        effects
    }
}

fn departure(rank: usize) -> Failure {
    Failure {
        rank: rank as u32,
        kind: FailureKind::Left,
        cause: "it left the job while others still met".into(),
    }
}

fn within_bounds(op: &Op) -> Result<(), String> {
    let (keys, values): (Vec<&str>, &[&[u8]]) = match op {
        Op::Ping => return Ok(()),
        Op::Set { key, value } => (vec![key], &[value]),
        Op::Get { key } | Op::Add { key, .. } => (vec![key], &[]),
        Op::Wait { keys } => (keys.iter().map(String::as_str).collect(), &[]),
        Op::CompareAndSet {
            key,
            expected,
            value,
        } => (vec![key], &[value, expected.as_deref().unwrap_or(&[])]),
        Op::Meet {
            scope, tag, bytes, ..
        } => (vec![scope, tag], &[bytes]),
        Op::Abort { message } => (vec![message], &[]),
    };
    if keys.is_empty() {
        return Err("no key".into());
    }
    if keys.len() > MOST_KEYS || keys.iter().map(|key| key.len()).sum::<usize>() > 64 * LONGEST_KEY
    {
        return Err(format!(
            "above {MOST_KEYS} keys, or {} bytes of them",
            64 * LONGEST_KEY
        ));
    }
    if keys.iter().any(|key| key.len() > LONGEST_KEY) {
        return Err(format!("a key, tag or message above {LONGEST_KEY} bytes"));
    }
    if values.iter().any(|value| value.len() > LARGEST_VALUE) {
        return Err(format!("a value above {LARGEST_VALUE} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
