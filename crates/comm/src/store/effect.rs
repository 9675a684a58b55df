//! What the state machines of the store consume and produce.

use std::time::Instant;

use super::wire::{Answer, Failure};

/// What the server must do after a transition.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Answer {
        rank: usize,
        id: u64,
        answer: Answer,
    },
    /// Send to every joined member.
    Broadcast(Failure),
}

/// Where a rank is in its life: see [`State`](super::state::State).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    Absent,
    Joined,
    Left,
    Lost,
}

/// A rank's request that waits, and its deadline.
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
