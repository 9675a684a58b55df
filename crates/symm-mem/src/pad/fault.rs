//! What a failed wait reports to the host and to the peers.
//!
//! The first failing wait of a rank *stops* its device: it sets
//! [`StopFlags::device`](super::StopFlags::device), so that none of its pads signals afterwards. Then it
//! stores a [`Notice`] to the fault record of every rank's pad, its own included. Only after that does its
//! kernel end, and only then can its caller see the error and overwrite memory that peers may still read. So
//! a rank that finds no notice after its last read has read valid data.

use std::time::Duration;

use crate::error::{FaultCause, SignalFault};

/// Sixteen u32 after the flags of a pad, in memory that the peers can access. Peers write `notice`; the
/// device of the pad's own rank writes the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FaultRecord {
    /// A [`Notice`], 0 if there is none.
    pub notice: u32,
    /// 0: none, 1: being written, 2: complete.
    pub state: u32,
    /// The rank that waited.
    pub waiter: u32,
    /// The rank that did not signal.
    pub peer: u32,
    /// Slot of the pad.
    pub slot: u32,
    /// The expected epoch.
    pub expected: u32,
    /// The epoch in the flag.
    pub seen: u32,
    /// Why the wait ended. 0: its deadline, 1: a notice, 2: the device was stopped, 3: the host stopped it.
    pub cause: u32,
    /// Microseconds waited, low half.
    pub waited_us_low: u32,
    /// Microseconds waited, high half.
    pub waited_us_high: u32,
    /// Ranks 0 to 31 that missed a deadline of this pad, as bits.
    pub missing_low: u32,
    /// Ranks 32 to 63.
    pub missing_high: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

impl FaultRecord {
    /// Size in device memory.
    pub const BYTES: usize = 64;

    /// Reads a record from device memory.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (words, _) = bytes.as_chunks();
        let word = |i: usize| u32::from_ne_bytes(words[i]);
        FaultRecord {
            notice: word(0),
            state: word(1),
            waiter: word(2),
            peer: word(3),
            slot: word(4),
            expected: word(5),
            seen: word(6),
            cause: word(7),
            waited_us_low: word(8),
            waited_us_high: word(9),
            missing_low: word(10),
            missing_high: word(11),
            reserved: [0; 4],
        }
    }

    /// True if the host of this rank, or of the rank that sent the notice, stopped the device because it lost
    /// a rank.
    pub fn is_by_loss(&self) -> bool {
        let noticed = Notice::from_bits(self.notice).is_some_and(|notice| notice.is_by_loss);
        match self.is_complete() {
            true if self.cause != 1 => self.cause == 3,
            _ => noticed,
        }
    }

    /// Whether a wait has written it. Until then there is at most a notice.
    fn is_complete(&self) -> bool {
        self.state == 2
    }

    /// The fault, if a wait recorded one or a peer sent a notice. `rank` is the rank of this pad. `lost` is
    /// the rank that the exchange lost, `None` if it is outside the pad's group, and the cause.
    pub fn fault(
        &self,
        pad: &str,
        rank: usize,
        lost: Option<&(Option<usize>, String)>,
    ) -> Option<SignalFault> {
        let notice = Notice::from_bits(self.notice);
        let is_complete = self.is_complete();
        if !is_complete && notice.is_none() {
            return None;
        }
        // A stopped wait, here or on the rank that sent the notice, may have been for any rank.
        let is_stopped = is_complete && matches!(self.cause, 2 | 3);
        let lost = lost.filter(|_| is_stopped || self.is_by_loss());
        let missing = self.missing();
        let missing: Vec<usize> = (0..64).filter(|rank| missing >> rank & 1 == 1).collect();
        let peer = self.peer as usize;
        let (peer, cause) = match (lost.cloned(), notice) {
            _ if is_complete && self.cause == 0 => (peer, FaultCause::Deadline { missing }),
            (Some((Some(lost), why)), _) => (lost, FaultCause::PeerLost { why }),
            (Some((None, why)), _) => (peer, FaultCause::OutsiderLost { why }),
            (None, Some(notice)) if !is_stopped => {
                let reporter = notice.reporter as usize;
                let culprit = notice.culprit.map_or(reporter, usize::from);
                (culprit, FaultCause::PeerGaveUp { reporter })
            }
            (None, _) => (peer, FaultCause::Stopped),
        };
        Some(SignalFault {
            pad: pad.into(),
            rank,
            peer,
            slot: self.slot as usize,
            expected: self.expected,
            seen: self.seen,
            waited: Duration::from_micros(
                u64::from(self.waited_us_low) | u64::from(self.waited_us_high) << 32,
            ),
            root: None,
            cause,
        })
    }

    /// The rank that the failed wait of `rank` was for, if this record has one.
    pub fn waited_for(&self, rank: usize) -> Option<usize> {
        (self.is_complete() && self.waiter as usize == rank).then_some(self.peer as usize)
    }

    /// A rank that missed a deadline of `rank`, if this record has one: also where a wait that was stopped is
    /// what was recorded.
    pub fn missed(&self, rank: usize) -> Option<usize> {
        let missing = self.missing();
        match self.waited_for(rank)? {
            peer if self.cause == 0 => Some(peer),
            _ => (missing != 0).then_some(missing.trailing_zeros() as usize),
        }
    }

    /// The ranks that missed a deadline, one bit each.
    fn missing(&self) -> u64 {
        u64::from(self.missing_low) | u64::from(self.missing_high) << 32
    }
}

/// What a rank leaves for its peers when it gives up a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The rank that gave up.
    pub reporter: u16,
    /// The rank that it waited for; none if it was stopped by a wait on another pad or by its host.
    pub culprit: Option<u16>,
    /// True if it gave up because its host lost a rank.
    pub is_by_loss: bool,
}

impl Notice {
    const SET: u32 = 1 << 31;
    const BY_LOSS: u32 = 1 << 30;
    const NOBODY: u16 = u16::MAX;

    /// The stored form: bit 31 is set, bit 30 means "by loss", then fourteen bits of the reporter and sixteen
    /// of the culprit (all ones for none).
    pub const fn to_bits(self) -> u32 {
        let by_loss = if self.is_by_loss { Self::BY_LOSS } else { 0 };
        let culprit = match self.culprit {
            Some(culprit) => culprit,
            None => Self::NOBODY,
        };
        Self::SET | by_loss | (self.reporter as u32 & 0x3fff) << 16 | culprit as u32
    }

    /// Decodes the stored form.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & Self::SET == 0 {
            return None;
        }
        Some(Notice {
            reporter: (bits >> 16 & 0x3fff) as u16,
            culprit: match bits as u16 {
                Self::NOBODY => None,
                culprit => Some(culprit),
            },
            is_by_loss: bits & Self::BY_LOSS != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cause: u32, notice: u32) -> FaultRecord {
        FaultRecord {
            notice,
            state: 2,
            waiter: 1,
            peer: 2,
            slot: 3,
            cause,
            missing_low: 0b101,
            ..Default::default()
        }
    }

    #[test]
    fn notices_survive_their_encoding() {
        for (culprit, is_by_loss) in [(Some(0), false), (Some(63), false), (None, true)] {
            let notice = Notice {
                reporter: 7,
                culprit,
                is_by_loss,
            };
            assert_eq!(Notice::from_bits(notice.to_bits()), Some(notice));
        }
        assert_eq!(Notice::from_bits(0), None);
    }

    #[test]
    fn a_record_says_who_missed_a_deadline_whichever_wait_it_has() {
        assert_eq!(record(0, 0).missed(1), Some(2));
        assert_eq!(record(2, 0).missed(1), Some(0));
        let nobody = FaultRecord {
            missing_low: 0,
            ..record(2, 0)
        };
        assert_eq!(nobody.missed(1), None);
        assert_eq!(record(0, 0).missed(2), None, "not its record");
        assert_eq!(FaultRecord::default().missed(0), None);
    }

    #[test]
    fn a_record_says_who_and_why() {
        let begun = FaultRecord {
            state: 1,
            ..Default::default()
        };
        for record in [FaultRecord::default(), begun] {
            assert_eq!(record.fault("p", 0, None), None);
        }
        let notice = |is_by_loss| {
            let (reporter, culprit) = (3, Some(1));
            Notice {
                reporter,
                culprit,
                is_by_loss,
            }
            .to_bits()
        };
        let (notice, by_loss) = (notice(false), notice(true));
        let fault = |record: FaultRecord, lost: Option<&(Option<usize>, String)>| {
            let fault = record.fault("p", 1, lost).unwrap();
            (fault.peer, fault.cause)
        };
        let missing = FaultCause::Deadline {
            missing: vec![0, 2],
        };
        assert_eq!(fault(record(0, notice), None), (2, missing));
        let gave_up = FaultCause::PeerGaveUp { reporter: 3 };
        assert_eq!(fault(record(1, notice), None), (1, gave_up.clone()));
        for record in [FaultRecord::default(), begun] {
            let unseen = FaultRecord { notice, ..record };
            assert_eq!(fault(unseen, None), (1, gave_up.clone()));
        }
        let lost = (Some(5), "it died".to_owned());
        assert_eq!(fault(record(1, notice), Some(&lost)), (1, gave_up.clone()));
        assert_eq!(fault(record(1, by_loss), None), (1, gave_up));
        let why = FaultCause::PeerLost {
            why: "it died".into(),
        };
        for record in [record(3, 0), record(2, notice), record(1, by_loss)] {
            assert_eq!(fault(record, Some(&lost)), (5, why.clone()), "{record:?}");
        }
        let outsider = FaultCause::OutsiderLost {
            why: "it died".into(),
        };
        let lost = (None, "it died".to_owned());
        assert_eq!(fault(record(3, 0), Some(&lost)), (2, outsider));
        assert_eq!(fault(record(3, 0), None), (2, FaultCause::Stopped));
        assert_eq!(fault(record(2, 0), None), (2, FaultCause::Stopped));
    }
}
