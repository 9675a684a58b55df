//! The messages of a registration.

use super::{AddressSpace, AllocationIdentity, MemoryHandle};
use crate::agreement::{Reply, read, write};
use crate::backend::DevicePtr;
use crate::uniform::{Group, Sides};
use crate::wire::Malformed;

/// A range of one rank's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub identity: AllocationIdentity,
    pub offset: usize,
    pub bytes: usize,
}

impl Range {
    pub fn address(&self) -> DevicePtr {
        self.identity.base.add(self.offset)
    }
}

/// A rank's message to register memory: its views of the cache and its range.
#[derive(Debug)]
pub(super) struct Offer {
    pub sides: Sides,
    pub space: AddressSpace,
    pub range: Range,
}

impl Offer {
    pub fn encode(reply: Reply<&Offer>) -> Vec<u8> {
        write(reply, |offer, to| {
            offer.sides.write(to);
            offer.space.write(to);
            offer.range.identity.write(to);
            to.word(offer.range.offset as u64)
                .word(offer.range.bytes as u64);
        })
    }

    pub fn decode(bytes: &[u8]) -> Result<Reply<Offer>, Malformed> {
        read(bytes, |from| {
            let offer = Offer {
                sides: Sides::read(from)?,
                space: AddressSpace::read(from)?,
                range: Range {
                    identity: AllocationIdentity::read(from)?,
                    offset: from.size()?,
                    bytes: from.size()?,
                },
            };
            let end = offer.range.offset.checked_add(offer.range.bytes);
            match end {
                Some(end) if end <= offer.range.identity.bytes => Ok(offer),
                _ => Err(Malformed("a range outside of its allocation")),
            }
        })
    }
}

pub(crate) fn encode_handle(reply: Reply<&MemoryHandle>) -> Vec<u8> {
    write(reply, MemoryHandle::write)
}

pub(crate) fn decode_handle(bytes: &[u8]) -> Result<Reply<MemoryHandle>, Malformed> {
    read(bytes, MemoryHandle::read)
}

/// The group and number of the entry to release.
pub(super) fn encode_place(reply: Reply<&(Group, u64)>) -> Vec<u8> {
    write(reply, |&(group, number), to| {
        to.word(group).word(number);
    })
}

pub(super) fn decode_place(bytes: &[u8]) -> Result<Reply<(Group, u64)>, Malformed> {
    read(bytes, |from| Ok((from.word()?, from.word()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreement::Refusal;
    use crate::uniform::{CacheLimits, Groups};

    fn offer() -> Offer {
        Offer {
            sides: Groups::<u8, u8>::new(CacheLimits::default()).sides(None, |_, _| false),
            space: AddressSpace::of_process().unwrap(),
            range: Range {
                identity: AllocationIdentity {
                    id: 5,
                    block: 6,
                    base: DevicePtr(4096),
                    bytes: 100,
                },
                offset: 40,
                bytes: 60,
            },
        }
    }

    #[test]
    fn an_offer_arrives_as_it_was_sent_and_a_cut_one_is_refused() {
        let sent = offer();
        let message = Offer::encode(Ok(&sent));
        let got = Offer::decode(&message).unwrap().unwrap();
        assert_eq!((got.space, got.range), (sent.space, sent.range));
        for cut in 0..message.len() {
            assert!(Offer::decode(&message[..cut]).is_err(), "{cut} bytes");
        }
        let refusal = Refusal {
            cause: "no memory".into(),
            unavailable: true,
        };
        let why = Offer::decode(&Offer::encode(Err(refusal)))
            .unwrap()
            .unwrap_err();
        assert_eq!((why.cause.as_str(), why.unavailable), ("no memory", true));
    }

    #[test]
    fn an_offer_of_what_its_allocation_does_not_hold_is_refused() {
        for (offset, bytes) in [(41, 60), (usize::MAX, 2), (0, 101)] {
            let mut sent = offer();
            (sent.range.offset, sent.range.bytes) = (offset, bytes);
            assert!(Offer::decode(&Offer::encode(Ok(&sent))).is_err());
        }
    }
}
