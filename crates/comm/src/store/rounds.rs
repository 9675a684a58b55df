//! One meeting of all ranks: an all-gather, of which a barrier is the one with no bytes.
//!
//! ```text
//! Open ──last rank arrives──▶ Met
//!  ├───two tags differ──────▶ Broken   every rank, now or later, learns of a rank at another call
//!  ├───a deadline passes────▶ GivenUp  every rank here now, or coming later, fails with it
//!  └───a rank left or died──▶ Ended
//! ```
//!
//! The outcome is the same kind on every rank, so no rank goes on alone.

use std::time::Instant;

use super::state::{Effect, Member, Waiter};
use super::wire::{Answer, Failure, FailureKind, REPLY_LIMIT};

pub(super) struct Round {
    given: Vec<Option<(String, Vec<u8>)>>,
    waiting: Vec<Waiter>,
    outcome: Outcome,
    /// Bytes that were contributed. Above the limit none are kept, since no answer could hold them.
    total: usize,
}

enum Outcome {
    Open,
    Met,
    Broken,
    GivenUp(Failure),
    Ended(Failure),
}

impl Round {
    pub(super) fn new(world: usize) -> Self {
        Self {
            given: vec![None; world],
            waiting: Vec::new(),
            outcome: Outcome::Open,
            total: 0,
        }
    }

    /// What all contributions together may have: the frame needs a few bytes for each entry beside the contents.
    fn limit(&self) -> usize {
        REPLY_LIMIT - 16 * self.given.len() - 1024
    }

    /// Whether the rank has come.
    pub(super) fn has(&self, rank: usize) -> bool {
        self.given[rank].is_some()
    }

    /// Whether a rank may still come. One that left never will.
    pub(super) fn is_awaited(&self, members: &[Member]) -> bool {
        (0..members.len()).any(|r| !self.has(r) && members[r] != Member::Left)
    }

    pub(super) fn arrive(&mut self, waiter: Waiter, tag: String, bytes: Vec<u8>) -> Vec<Effect> {
        if self.has(waiter.rank) {
            let why = format!("rank {} came twice to the same meeting", waiter.rank);
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        let bytes = match self.outcome {
            Outcome::Open => bytes,
            _ => Vec::new(),
        };
        self.total += bytes.len();
        self.given[waiter.rank] = Some((tag, bytes));
        if self.total > self.limit() {
            self.forget_bytes();
        }
        self.waiting.push(waiter);
        match &self.outcome {
            Outcome::GivenUp(failure) | Outcome::Ended(failure) => {
                let failure = failure.clone();
                self.dismiss(|_| Answer::Failed(failure.clone()))
            }
            Outcome::Broken => self.break_up(),
            Outcome::Open | Outcome::Met if self.other_tag(waiter.rank).is_some() => {
                self.break_up()
            }
            Outcome::Open | Outcome::Met if self.given.iter().all(Option::is_some) => {
                self.complete()
            }
            Outcome::Open | Outcome::Met => Vec::new(),
        }
    }

    /// From `Open` alone.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Effect> {
        let Some(late) = self.waiting.iter().find(|w| w.deadline <= now).copied() else {
            return Vec::new();
        };
        let missing: Vec<u32> = (0..self.given.len())
            .filter(|&r| !self.has(r))
            .map(|r| r as u32)
            .collect();
        self.outcome = Outcome::GivenUp(Failure {
            rank: late.rank as u32,
            kind: FailureKind::Aborted,
            cause: format!("it had given up waiting for ranks {missing:?}"),
        });
        self.forget_bytes();
        self.dismiss(|_| Answer::TimedOut {
            waiting_for: missing.clone(),
        })
    }

    /// From `Open` alone: the failure ends it for those who wait and those who come.
    pub(super) fn end(&mut self, failure: &Failure) -> Vec<Effect> {
        if !matches!(self.outcome, Outcome::Open) {
            return Vec::new();
        }
        self.outcome = Outcome::Ended(failure.clone());
        self.forget_bytes();
        self.dismiss(|_| Answer::Failed(failure.clone()))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.deadline).min()
    }

    pub(super) fn forget_waiter(&mut self, rank: usize) {
        self.waiting.retain(|w| w.rank != rank);
    }

    fn complete(&mut self) -> Vec<Effect> {
        self.outcome = Outcome::Met;
        let (total, limit) = (self.total, self.limit());
        if total > limit {
            let why = format!("{total} bytes of all ranks together; the limit is {limit}");
            return self.dismiss(|_| Answer::Rejected(why.clone()));
        }
        let all: Vec<Vec<u8>> = self
            .given
            .iter_mut()
            .flatten()
            .map(|(_, bytes)| std::mem::take(bytes))
            .collect();
        self.dismiss(|_| Answer::Met(all.clone()))
    }

    fn break_up(&mut self) -> Vec<Effect> {
        self.outcome = Outcome::Broken;
        self.forget_bytes();
        let answers: Vec<_> = self
            .waiting
            .iter()
            .map(|w| self.other_tag(w.rank))
            .collect();
        let waiting = std::mem::take(&mut self.waiting);
        let named = waiting.into_iter().zip(answers).map(|(waiter, other)| {
            let (rank, theirs) =
                other.expect("a broken round has two tags, one of which differs from any third");
            waiter.answer(Answer::Mismatch {
                rank: rank as u32,
                theirs,
            })
        });
        named.collect()
    }

    /// A rank whose tag is not that of `rank`.
    fn other_tag(&self, rank: usize) -> Option<(usize, String)> {
        let (mine, _) = self.given[rank].as_ref()?;
        self.given.iter().enumerate().find_map(|(other, given)| {
            let (tag, _) = given.as_ref()?;
            (tag != mine).then(|| (other, tag.clone()))
        })
    }

    /// Once it is known that nobody will be given them.
    fn forget_bytes(&mut self) {
        for (_, bytes) in self.given.iter_mut().flatten() {
            *bytes = Vec::new();
        }
    }

    fn dismiss(&mut self, answer: impl Fn(Waiter) -> Answer) -> Vec<Effect> {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|w| w.answer(answer(w)))
            .collect()
    }
}
