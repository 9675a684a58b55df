//! The record that a wait leaves behind when it misses its deadline.

use std::time::Duration;

use crate::error::SignalTimeout;

/// Eight u32, written by the device: state (0 none, 1 being written, 2 complete), waiter, peer, slot, expected epoch,
/// seen epoch, and the microseconds waited as low and high half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultRecord {
    /// 0 none, 1 being written, 2 complete.
    pub state: u32,
    /// The rank that waited.
    pub waiter: u32,
    /// The rank that did not signal.
    pub peer: u32,
    /// Slot of the pad.
    pub slot: u32,
    /// Epoch waited for.
    pub expected: u32,
    /// Epoch seen.
    pub seen: u32,
    /// Microseconds waited, low half.
    pub waited_us_low: u32,
    /// Microseconds waited, high half.
    pub waited_us_high: u32,
}

impl FaultRecord {
    /// Size in device memory.
    pub const BYTES: usize = 32;

    /// From device memory.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (words, _) = bytes.as_chunks();
        let word = |i: usize| u32::from_ne_bytes(words[i]);
        FaultRecord {
            state: word(0),
            waiter: word(1),
            peer: word(2),
            slot: word(3),
            expected: word(4),
            seen: word(5),
            waited_us_low: word(6),
            waited_us_high: word(7),
        }
    }

    /// The fault, if one was recorded.
    pub fn timeout(&self, pad: &str) -> Option<SignalTimeout> {
        (self.state != 0).then(|| SignalTimeout {
            pad: pad.into(),
            rank: self.waiter as usize,
            peer: self.peer as usize,
            slot: self.slot as usize,
            expected: self.expected,
            seen: self.seen,
            waited: Duration::from_micros(
                u64::from(self.waited_us_low) | u64::from(self.waited_us_high) << 32,
            ),
        })
    }
}
