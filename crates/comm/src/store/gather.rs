//! One all-gather of all ranks. A barrier is an all-gather of no bytes.
//!
//! ```text
//! Open ──last rank arrives──▶ Complete
//!  ├───two tags differ──────▶ Mismatched  every rank, now or later, gets a rank at another call
//!  ├───a deadline passes────▶ TimedOut    every rank, waiting now or arriving later, fails with it
//!  └───a rank left or died──▶ Ended
//! ```
//!
//! The outcome has the same kind on every rank, so no rank goes on alone.

use std::time::Instant;

use super::effect::{Effect, Member, Waiter};
use super::wire::{Answer, Failure, FailureKind, Gathered, REPLY_LIMIT};

pub(super) struct Gather {
    given: Vec<Option<(String, Vec<u8>)>>,
    waiting: Vec<Waiter>,
    outcome: Outcome,
    /// Bytes contributed so far. Above the limit none are kept, since no answer could hold them.
    total: usize,
}

enum Outcome {
    Open,
    Complete,
    Mismatched,
    TimedOut(Failure),
    Ended(Failure),
}

impl Gather {
    pub(super) fn new(world: usize) -> Self {
        Self {
            given: vec![None; world],
            waiting: Vec::new(),
            outcome: Outcome::Open,
            total: 0,
        }
    }

    /// Upper bound on all contributions: the frame needs a few bytes per entry besides the contents.
    fn limit(&self) -> usize {
        REPLY_LIMIT - 16 * self.given.len() - 1024
    }

    /// Whether the rank has arrived.
    pub(super) fn has(&self, rank: usize) -> bool {
        self.given[rank].is_some()
    }

    /// Whether a rank may still arrive. One that left never will.
    pub(super) fn is_awaited(&self, members: &[Member]) -> bool {
        (0..members.len()).any(|r| !self.has(r) && members[r] != Member::Left)
    }

    pub(super) fn arrive(&mut self, waiter: Waiter, tag: String, bytes: Vec<u8>) -> Vec<Effect> {
        if self.has(waiter.rank) {
            let why = format!("rank {} called the same all-gather twice", waiter.rank);
            return vec![waiter.answer(Answer::Rejected(why))];
        }
        let bytes = match self.outcome {
            Outcome::Open => bytes,
            _ => Vec::new(),
        };
        self.total += bytes.len();
        self.given[waiter.rank] = Some((tag, bytes));
        if self.total > self.limit() {
            self.drop_bytes();
        }
        self.waiting.push(waiter);
        match &self.outcome {
            Outcome::TimedOut(failure) | Outcome::Ended(failure) => {
                let failure = failure.clone();
                self.answer_all(|_| Answer::Failed(failure.clone()))
            }
            Outcome::Mismatched => self.mismatch(),
            Outcome::Open | Outcome::Complete if self.other_tag(waiter.rank).is_some() => {
                self.mismatch()
            }
            Outcome::Open | Outcome::Complete if self.given.iter().all(Option::is_some) => {
                self.complete()
            }
            Outcome::Open | Outcome::Complete => Vec::new(),
        }
    }

    /// Only from `Open`.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Effect> {
        let Some(late) = self.waiting.iter().find(|w| w.deadline <= now).copied() else {
            return Vec::new();
        };
        let missing: Vec<u32> = (0..self.given.len())
            .filter(|&r| !self.has(r))
            .map(|r| r as u32)
            .collect();
        self.outcome = Outcome::TimedOut(Failure {
            rank: late.rank as u32,
            kind: FailureKind::Aborted,
            cause: format!("it had timed out waiting for ranks {missing:?}"),
        });
        self.drop_bytes();
        self.answer_all(|_| Answer::TimedOut {
            waiting_for: missing.clone(),
        })
    }

    /// Only from `Open`: the failure ends it for the ranks that wait and those that arrive later.
    pub(super) fn end(&mut self, failure: &Failure) -> Vec<Effect> {
        if !matches!(self.outcome, Outcome::Open) {
            return Vec::new();
        }
        self.outcome = Outcome::Ended(failure.clone());
        self.drop_bytes();
        self.answer_all(|_| Answer::Failed(failure.clone()))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.deadline).min()
    }

    pub(super) fn forget_waiter(&mut self, rank: usize) {
        self.waiting.retain(|w| w.rank != rank);
    }

    fn complete(&mut self) -> Vec<Effect> {
        self.outcome = Outcome::Complete;
        let (total, limit) = (self.total, self.limit());
        if total > limit {
            let why = format!("{total} bytes of all ranks together; the limit is {limit}");
            return self.answer_all(|_| Answer::Rejected(why.clone()));
        }
        let all: Vec<Vec<u8>> = self
            .given
            .iter_mut()
            .flatten()
            .map(|(_, bytes)| std::mem::take(bytes))
            .collect();
        let all = Gathered::new(&all);
        self.answer_all(|_| Answer::Gathered(all.clone()))
    }

    fn mismatch(&mut self) -> Vec<Effect> {
        self.outcome = Outcome::Mismatched;
        self.drop_bytes();
        let answers: Vec<_> = self
            .waiting
            .iter()
            .map(|w| self.other_tag(w.rank))
            .collect();
        let waiting = std::mem::take(&mut self.waiting);
        let named = waiting.into_iter().zip(answers).map(|(waiter, other)| {
            let (rank, theirs) = other
                .expect("a mismatched gather has two tags, one of which differs from any third");
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

    /// Once no rank will receive them.
    fn drop_bytes(&mut self) {
        for (_, bytes) in self.given.iter_mut().flatten() {
            *bytes = Vec::new();
        }
    }

    fn answer_all(&mut self, answer: impl Fn(Waiter) -> Answer) -> Vec<Effect> {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|w| w.answer(answer(w)))
            .collect()
    }
}
