//! The twin of `packet.cuh`: data that carry the epoch of their call.
//!
//! The device stores a packet in one access; the host stores its data and then, with release, its flag. The
//! same argument protects a section from being overwritten while read: a section of call e is written again
//! in call e + 2, by a rank that has ended call e + 1 and so received from its owner after the owner's call
//! e.
//!
//! The protocol is generic over the memory: loom explores the code that runs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warpweave_symm_mem::host::Element;
use warpweave_symm_mem::sync::{Instant, thread};

use super::elements;
use super::group::{Atomic, HostGroup, Member, of_other_call};
use crate::collective::launch::{EPOCH_BITS, MAX_WORLD, PACKET, PACKET_SLOT, PAYLOAD, Packets};

/// Polls of a packet between two checks of the clock and the fault record.
const POLLS: u32 = 64;

/// Packets that a call zeroes in each section.
const SCRUBBED: usize = 32;

/// The bits of a flag without the signature.
const EPOCH: u32 = (2 << EPOCH_BITS) - 1;

/// The data of a packet.
pub(super) type Payload = [u32; PAYLOAD / 4];

/// Packets of a chunk. At least one: the protocol requires that every rank receives from every other.
pub(super) const fn packets_of(bytes: usize) -> usize {
    if bytes == 0 {
        1
    } else {
        bytes.div_ceil(PAYLOAD)
    }
}

/// A packet in memory.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Packet<A> {
    data: [A; PAYLOAD / 4],
    flag: A,
}

const _: () = assert!(size_of::<Packet<AtomicU32>>() == PACKET);

impl<A: Atomic> Packet<A> {
    fn store(&self, data: &Payload, flag: u32) {
        for (word, value) in self.data.iter().zip(data) {
            word.store(*value, Ordering::Relaxed);
        }
        self.flag.store(flag, Ordering::Release);
    }

    /// Whether the flag has the epoch of `flag` and another signature.
    fn is_of_other_call(&self, flag: u32) -> bool {
        let seen = self.flag.load(Ordering::Acquire);
        seen != flag && (seen ^ flag) & EPOCH == 0
    }

    /// The data, if their flag is `flag`.
    fn load(&self, flag: u32) -> Option<Payload> {
        (self.flag.load(Ordering::Acquire) == flag)
            .then(|| std::array::from_fn(|word| self.data[word].load(Ordering::Relaxed)))
    }
}

/// The receiving areas of a group: on every rank `[section][capacity]` packets.
pub(super) trait Areas {
    /// The ranks.
    type Group: Member;

    /// A word of a packet.
    type Atomic: Atomic;

    /// The group.
    fn group(&self) -> &Self::Group;

    /// A packet of `owner`'s area.
    fn packet(&self, owner: usize, section: usize, index: usize) -> &Packet<Self::Atomic>;

    /// Packets of a section.
    fn capacity(&self) -> usize;

    /// Backs off after so many polls.
    fn pause(&self, polls: u32);
}

/// Polls until `take` gives what `source` sends in the call of `epoch`, and backs off by `pause`. `None` if
/// it did not arrive in time, or if `is_of_other_call`, and it never will.
pub(super) fn poll<D>(
    group: &impl Member,
    source: usize,
    epoch: u32,
    take: impl Fn() -> Option<D>,
    is_of_other_call: impl Fn() -> bool,
    pause: impl Fn(u32),
) -> Option<D> {
    let mut start = None;
    for polls in 1.. {
        if let Some(data) = take() {
            return Some(data);
        }
        if polls % POLLS == 0 {
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            let is_other = is_of_other_call();
            let late = waited > group.timeout() || is_other;
            if late || group.is_stopped() || group.is_noticed() {
                // A wait that ends before its deadline would pass for one that was stopped.
                let (seen, waited) = match is_other {
                    true => (of_other_call(epoch), waited.max(group.timeout())),
                    false => (epoch.wrapping_sub(1), waited),
                };
                group.record(PACKET_SLOT, source, epoch, seen, waited);
                return None;
            }
        }
        pause(polls);
    }
    None
}

/// Reduces what all ranks have, `own` in this rank's place and of each other what `receive` gives; `None` if
/// one did not arrive in time.
pub(super) fn reduce_words<T: Element, const N: usize>(
    group: &impl Member,
    own: &[u32; N],
    receive: impl Fn(usize) -> Option<[u32; N]>,
) -> Option<[u32; N]> {
    let mut all = [[0; N]; MAX_WORLD];
    all[group.rank()] = *own;
    for source in group.peers() {
        all[source] = receive(source)?;
    }
    let mut sum = [0; N];
    let ranks = all[..group.world()].iter();
    // SAFETY: the words hold so many elements and are aligned for them.
    unsafe {
        let count = size_of::<[u32; N]>() / size_of::<T>();
        let into = std::slice::from_raw_parts_mut(sum.as_mut_ptr().cast::<T>(), count);
        elements::reduce(ranks.map(|words| words.as_ptr().cast()), into);
    }
    Some(sum)
}

/// Backs off after so many polls. Nobody wakes a receiver: a wake for each packet would cost more than the
/// packets.
pub(super) fn back_off(polls: u32) {
    match polls {
        ..64 => std::hint::spin_loop(),
        64..512 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(50)),
    }
}

/// The packets of one call as a rank sees them.
pub(super) struct Sections<'a, A> {
    areas: &'a A,
    epoch: u32,
    flag: u32,
}

impl<'a, A: Areas> Sections<'a, A> {
    /// The sections of the call of `epoch`. The flag is odd, so it differs from zeroed memory. It carries the
    /// call's signature, and repeats only after 2²⁰ calls.
    pub(super) fn new(areas: &'a A, epoch: u32) -> Self {
        Self {
            areas,
            epoch,
            flag: areas.group().signature() & !EPOCH | (epoch << 1 | 1) & EPOCH,
        }
    }

    /// The same of a chunk of so many bytes, about which its two ranks might disagree: `length_mark` in
    /// `packets.cu`.
    pub(super) fn of_length(&self, bytes: usize) -> Self {
        Self {
            flag: self.flag ^ ((bytes / 2) as u32) << (EPOCH_BITS + 1),
            ..*self
        }
    }

    pub(super) fn group(&self) -> &'a A::Group {
        self.areas.group()
    }

    fn at(&self, owner: usize, source: usize, index: usize) -> &'a Packet<A::Atomic> {
        let section = (self.epoch & 1) as usize * self.group().world() + source;
        self.areas.packet(owner, section, index)
    }

    pub(super) fn send(&self, peer: usize, index: usize, data: &Payload) {
        self.at(peer, self.group().rank(), index)
            .store(data, self.flag);
    }

    /// The packet of `source`; `None` if it did not arrive in time.
    pub(super) fn receive(&self, source: usize, index: usize) -> Option<Payload> {
        let (group, packet) = (self.group(), self.at(self.group().rank(), source, index));
        let (take, is_other) = (
            || packet.load(self.flag),
            || packet.is_of_other_call(self.flag),
        );
        let pause = |polls| self.areas.pause(polls);
        poll(group, source, self.epoch, take, is_other, pause)
    }

    /// Zeroes a few packets that this call does not use, in rotation, so that no packet survives until its
    /// flag repeats. `used`: packets in use at the start of each section.
    pub(super) fn scrub(&self, used: usize) {
        self.scrub_unless(|_, index| index < used);
    }

    /// As [`Sections::scrub`]; `is_used` says which packets of which source this call uses.
    pub(super) fn scrub_unless(&self, is_used: impl Fn(usize, usize) -> bool) {
        let capacity = self.areas.capacity();
        for lane in 0..SCRUBBED.min(capacity) {
            let index = (self.epoch as usize / 2 * SCRUBBED + lane) % capacity;
            for source in (0..self.group().world()).filter(|&source| !is_used(source, index)) {
                self.at(self.group().rank(), source, index)
                    .store(&[0; PAYLOAD / 4], 0);
            }
        }
    }
}

/// The areas of a launch in the memory of the host backend.
pub(super) struct HostAreas<'a> {
    group: &'a HostGroup,
    launch: &'a Packets,
}

impl<'a> HostAreas<'a> {
    /// # Safety
    /// As for [`HostGroup::new`], for the group of the launch and the areas of the same collectives.
    pub(super) unsafe fn new(group: &'a HostGroup, launch: &'a Packets) -> Self {
        Self { group, launch }
    }
}

impl Areas for HostAreas<'_> {
    type Group = HostGroup;
    type Atomic = AtomicU32;

    fn group(&self) -> &HostGroup {
        self.group
    }

    fn packet(&self, owner: usize, section: usize, index: usize) -> &Packet<AtomicU32> {
        let index = section * self.capacity() + index;
        let packet = self.launch.area(owner).add(index * PACKET);
        // SAFETY: every area has two sections for each rank, aligned and accessed by atomics only; it lives,
        // as `new` was promised.
        unsafe { &*packet.as_host::<Packet<AtomicU32>>() }
    }

    fn capacity(&self) -> usize {
        self.launch.capacity as usize
    }

    fn pause(&self, polls: u32) {
        back_off(polls);
    }
}
