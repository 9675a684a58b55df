//! The roles of a transfer's two ends, and the flags of a lane that they signal.

/// A signal from one rank to the other; each has its own slot in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub(crate) enum Signal {
    /// To the reader: the exposed range can be read.
    Ready,
    /// To the owner: the exposed range has been read.
    Done,
    /// To the writer, a credit: the accepted range can be written.
    Free,
    /// To the receiver: the accepted range has been written.
    Arrived,
}

impl Signal {
    const ALL: [Signal; 4] = [Signal::Ready, Signal::Done, Signal::Free, Signal::Arrived];
    /// Slots of a lane.
    pub const SLOTS: usize = Self::ALL.len();

    /// The slot of the pad.
    pub const fn slot(self, lane: usize) -> usize {
        lane * Self::SLOTS + self as usize
    }

    /// The lane and the signal of a slot of the pad.
    pub fn of_slot(slot: usize) -> (usize, Signal) {
        (slot / Self::SLOTS, Self::ALL[slot % Self::SLOTS])
    }

    pub const fn name(self) -> &'static str {
        match self {
            Signal::Ready => "ready",
            Signal::Done => "done",
            Signal::Free => "free",
            Signal::Arrived => "arrived",
        }
    }
}

/// A rank's role in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Role {
    /// Lets a peer read.
    Expose,
    /// Reads from a peer that exposes.
    Get,
    /// Lets a peer write.
    Accept,
    /// Writes to a peer that accepts.
    Put,
}

impl Role {
    pub(crate) const ALL: [Role; 4] = [Role::Expose, Role::Get, Role::Accept, Role::Put];

    /// Whether this rank moves the bytes.
    pub const fn is_active(self) -> bool {
        matches!(self, Role::Get | Role::Put)
    }

    /// "expose", "get", "accept" or "put".
    pub const fn name(self) -> &'static str {
        match self {
            Role::Expose => "expose",
            Role::Get => "get",
            Role::Accept => "accept",
            Role::Put => "put",
        }
    }

    /// The signal to wait for: the active end waits before its copy, the passive end until the copy has
    /// ended.
    pub(crate) const fn awaited(self) -> Signal {
        match self {
            Role::Expose => Signal::Done,
            Role::Get => Signal::Ready,
            Role::Accept => Signal::Arrived,
            Role::Put => Signal::Free,
        }
    }

    /// The signal that this rank sends.
    pub(crate) const fn signalled(self) -> Signal {
        match self {
            Role::Expose => Signal::Ready,
            Role::Get => Signal::Done,
            Role::Accept => Signal::Free,
            Role::Put => Signal::Arrived,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_of_a_transfer_fit() {
        for (passive, active) in [(Role::Expose, Role::Get), (Role::Accept, Role::Put)] {
            assert_eq!(passive.signalled(), active.awaited());
            assert_eq!(active.signalled(), passive.awaited());
            assert!(active.is_active() && !passive.is_active());
        }
    }

    #[test]
    fn every_signal_of_every_lane_has_a_slot() {
        let slots: Vec<_> = (0..3)
            .flat_map(|lane| Signal::ALL.map(|signal| (signal.slot(lane), (lane, signal))))
            .collect();
        for (i, (slot, named)) in slots.into_iter().enumerate() {
            assert_eq!((slot, Signal::of_slot(slot)), (i, named));
        }
    }
}
