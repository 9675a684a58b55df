//! The store's state: the members of the job, the keys, and the waits. No sockets and no clock.
//!
//! The server calls [`State::join`], [`State::leave`], [`State::lose`], [`State::request`] and
//! [`State::expire`], and performs the [`Effect`]s that each returns. A member moves through
//!
//! ```text
//! Absent ──join──▶ Joined ──leave──▶ Left
//!                    └─────lose────▶ Lost
//! ```
//!
//! and never back. The first `lose` or `Abort` is the job's failure: it ends every wait at once, and every
//! later request that would wait. A member that left ends only the all-gathers that still need it.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::effect::{Effect, Member, Waiter};
use super::gather::Gather;
use super::wire::{Answer, Failure, FailureKind, LARGEST_VALUE, LONGEST_KEY, Op, Refusal};

/// Upper bound on all values, in bytes, with [`PER_KEY`] for each.
const LARGEST_STORE: usize = 256 << 20;
/// Bytes charged for a key besides its own and its value's.
const PER_KEY: usize = 128;
/// Bound on a rank's pending key waits, and on its pending all-gathers.
const MOST_WAITS: usize = 256;
/// Most keys in one request.
const MOST_KEYS: usize = 1024;

struct KeyWait {
    waiter: Waiter,
    keys: Vec<String>,
    /// Whether to return the first key's value, or only to wait for all keys.
    value: bool,
}

pub(super) struct State {
    members: Vec<Member>,
    failure: Option<Failure>,
    keys: HashMap<String, Vec<u8>>,
    stored: usize,
    waits: Vec<KeyWait>,
    gathers: BTreeMap<(String, u64), Gather>,
}

impl State {
    pub(super) fn new(world: usize) -> Self {
        Self {
            members: vec![Member::Absent; world],
            failure: None,
            keys: HashMap::new(),
            stored: 0,
            waits: Vec::new(),
            gathers: BTreeMap::new(),
        }
    }

    pub(super) fn world(&self) -> usize {
        self.members.len()
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether ranks that have not joined yet must still be told of a failure.
    pub(super) fn has_news_for_late_ranks(&self) -> bool {
        self.failure.is_some() && self.members.contains(&Member::Absent)
    }

    /// Only from `Absent`.
    pub(super) fn join(&mut self, rank: usize) -> Result<(), Refusal> {
        let member = self.members.get_mut(rank).ok_or(Refusal::Rank)?;
        match member {
            Member::Absent => *member = Member::Joined,
            Member::Joined | Member::Left | Member::Lost => return Err(Refusal::Taken),
        }
        Ok(())
    }

    /// A goodbye; only from `Joined`.
    pub(super) fn leave(&mut self, rank: usize) -> Vec<Effect> {
        if self.members.get(rank) != Some(&Member::Joined) {
            return Vec::new();
        }
        self.members[rank] = Member::Left;
        self.forget_waits_of(rank);
        let left = departure(rank);
        let effects = self
            .gathers
            .values_mut()
            .filter(|gather| !gather.has(rank))
            .flat_map(|gather| gather.end(&left))
            .collect();
        let members = &self.members;
        self.gathers.retain(|_, gather| gather.is_awaited(members));
        effects
    }

    /// A connection broke without a goodbye; only from `Joined`.
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
            Op::AllGather {
                scope,
                call,
                tag,
                bytes,
            } => self.all_gather(waiter, (scope, call), tag, bytes),
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

    /// Times out the waits whose deadline has passed.
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
            .chain(
                self.gathers
                    .values_mut()
                    .flat_map(|gather| gather.expire(now)),
            )
            .collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waits = self.waits.iter().map(|wait| wait.waiter.deadline);
        waits
            .chain(self.gathers.values().filter_map(Gather::next_deadline))
            .min()
    }

    fn fail(&mut self, failure: Failure) -> Vec<Effect> {
        if self.failure.is_some() {
            return Vec::new();
        }
        self.failure = Some(failure.clone());
        let waits = std::mem::take(&mut self.waits).into_iter();
        let gathers = std::mem::take(&mut self.gathers);
        waits
            .map(|wait| wait.waiter.answer(Answer::Failed(failure.clone())))
            .chain(
                gathers
                    .into_values()
                    .flat_map(|mut gather| gather.end(&failure)),
            )
            .chain([Effect::Broadcast(failure.clone())])
            .collect()
    }

    fn forget_waits_of(&mut self, rank: usize) {
        self.waits.retain(|wait| wait.waiter.rank != rank);
        self.gathers
            .values_mut()
            .for_each(|gather| gather.forget_waiter(rank));
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

    fn all_gather(
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
        let open = self.gathers.values().filter(|r| r.has(waiter.rank)).count();
        if open >= MOST_WAITS {
            let why = format!("{MOST_WAITS} all-gathers await other ranks already");
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        let gather = self
            .gathers
            .entry(key.clone())
            .or_insert_with(|| Gather::new(world));
        let mut effects = gather.arrive(waiter, tag, bytes);
        let gone = (0..world).find(|&r| self.members[r] == Member::Left && !gather.has(r));
        if let Some(rank) = gone {
            effects.extend(gather.end(&departure(rank)));
        }
        if !gather.is_awaited(&self.members) {
            self.gathers.remove(&key);
        }
        effects
    }
}

fn departure(rank: usize) -> Failure {
    Failure {
        rank: rank as u32,
        kind: FailureKind::Left,
        cause: "it left the job while others still needed it".into(),
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
        Op::AllGather {
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
