//! The twin of `sentinel.cuh`: all-reduces of data that need no flag.
//!
//! The protocol is generic over the memory: loom explores the code that runs.

use std::sync::atomic::{AtomicU32, Ordering};

use warpweave_symm_mem::host::Element;

use super::group::{self, Atomic, Barrier, HostGroup, Member, Phase};
use super::packet;
use super::packets::Operands;
use crate::collective::launch::{PACKET_SLOT, Packets};
use crate::collective::sentinel::{GENERATIONS, STATES, VECTOR};

/// The reference of `sentinel_*`.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn all_reduce<T: Element>(launch: &Packets) {
    // SAFETY: the caller's obligations.
    unsafe {
        let group = HostGroup::new(&launch.group);
        let epoch = group.epoch();
        let areas = HostAreas {
            group: &group,
            launch,
        };
        let operands = Operands::of(launch);
        if group.is_sound(PACKET_SLOT) {
            Call::begin(&areas, epoch, &operands).all_reduce::<T>();
        }
        group.advance(epoch);
    }
}

/// Data as they are, not inverted.
type Vector = [u32; VECTOR / 4];

const fn vectors_of(bytes: usize) -> usize {
    bytes.div_ceil(VECTOR)
}

/// The areas of a group: on every rank the state, then `[generation][source][capacity]` vectors.
pub(super) trait Areas {
    /// The ranks, and the barrier that they make.
    type Group: Barrier;

    /// A word of a vector or of the state.
    type Atomic: Atomic;

    /// The group.
    fn group(&self) -> &Self::Group;

    /// A word of `owner`'s area.
    fn word(&self, owner: usize, section: usize, index: usize, word: usize) -> &Self::Atomic;

    /// A word of this rank's state: the generation, then what the call before used: vectors at the start of
    /// each half of the sections.
    fn state(&self, word: usize) -> &Self::Atomic;

    /// Vectors of a section.
    fn capacity(&self) -> usize;

    /// Generations with sections of their own.
    fn generations(&self) -> usize {
        GENERATIONS
    }

    /// Backs off after so many polls.
    fn pause(&self, polls: u32);
}

/// A call as one rank sees it.
pub(super) struct Call<'a, A: Areas> {
    areas: &'a A,
    group: &'a A::Group,
    epoch: u32,
    generation: usize,
    operands: &'a Operands,
}

impl<'a, A: Areas> Call<'a, A> {
    pub(super) fn begin(areas: &'a A, epoch: u32, operands: &'a Operands) -> Self {
        let generation = areas.state(0).load(Ordering::Relaxed) as usize;
        Self {
            areas,
            group: areas.group(),
            epoch,
            generation,
            operands,
        }
    }

    /// Every rank reduces one chunk and sends the sum to all, into the second half of the sections.
    ///
    /// # Safety
    /// The operands are as long as they say; nothing else touches them meanwhile.
    pub(super) unsafe fn all_reduce<T: Element>(&self) {
        let (chunk, rank) = (self.operands.bytes, self.group.rank());
        let middle = self.areas.capacity() / 2;
        // As on the device, the flags release nothing of this call: its data need no flag.
        group::arrive(self.group, Phase::Enter, self.epoch);
        // SAFETY: the caller's obligation.
        unsafe {
            for peer in self.group.peers() {
                let bytes = self.operands.part(peer);
                for index in 0..vectors_of(bytes) {
                    self.send(peer, index, &self.operands.load(peer * chunk, index, bytes));
                }
            }
            self.prepare_next(vectors_of(chunk));
            let bytes = self.operands.part(rank);
            for index in 0..vectors_of(bytes) {
                let own = self.operands.load(rank * chunk, index, bytes);
                let Some(sum) = self.reduce::<T>(index, &own) else {
                    return;
                };
                self.send_all(middle + index, &sum);
                self.operands.store(rank * chunk, index, bytes, &sum);
            }
            for source in self.group.peers() {
                let bytes = self.operands.part(source);
                for index in 0..vectors_of(bytes) {
                    let Some(data) = self.receive(source, middle + index) else {
                        return;
                    };
                    self.operands.store(source * chunk, index, bytes, &data);
                }
            }
        }
        // Data do not wait for the flags.
        group::wait(self.group, Phase::Enter, self.epoch);
    }

    fn words(
        &self,
        generation: usize,
        (owner, source): (usize, usize),
        index: usize,
    ) -> impl Iterator<Item = &'a A::Atomic> {
        let areas = self.areas;
        let section = generation * self.group.world() + source;
        (0..VECTOR / 4).map(move |word| areas.word(owner, section, index, word))
    }

    fn send(&self, peer: usize, index: usize, data: &Vector) {
        // In the place of all ones: a NaN, or two of 16 bits.
        const OTHER_NAN: u32 = 0x7fff_7fff;
        let to = self.words(self.generation, (peer, self.group.rank()), index);
        for (to, &word) in to.zip(data) {
            let word = if word == u32::MAX { OTHER_NAN } else { word };
            to.store(!word, Ordering::Relaxed);
        }
    }

    fn send_all(&self, index: usize, data: &Vector) {
        for peer in self.group.peers() {
            self.send(peer, index, data);
        }
    }

    /// Once this rank has sent: prepares the next call, and zeroes what the call before received. So many
    /// vectors are received at the start of each half.
    fn prepare_next(&self, vectors: usize) {
        let (areas, count) = (self.areas, self.areas.generations());
        let previous = (self.generation + count - 1) % count;
        let used = areas.state(1).load(Ordering::Relaxed) as usize;
        let next = [(self.generation + 1) % count, vectors];
        for (word, value) in next.into_iter().enumerate() {
            areas.state(word).store(value as u32, Ordering::Relaxed);
        }
        let rank = self.group.rank();
        for source in self.group.peers() {
            for index in (0..used).flat_map(|i| [i, areas.capacity() / 2 + i]) {
                for word in self.words(previous, (rank, source), index) {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    /// A vector of `source`; `None` if it did not arrive in time.
    fn receive(&self, source: usize, index: usize) -> Option<Vector> {
        let take = || {
            let mut data = Vector::default();
            let from = self.words(self.generation, (self.group.rank(), source), index);
            for (to, from) in data.iter_mut().zip(from) {
                *to = !from.load(Ordering::Relaxed);
            }
            (!data.contains(&u32::MAX)).then_some(data)
        };
        let pause = |polls| self.areas.pause(polls);
        let (group, epoch) = (self.group, self.epoch);
        let is_other = || group::is_in_other_call(group, Phase::Enter, source, epoch);
        packet::poll(group, source, epoch, take, is_other, pause)
    }

    /// Reduces all ranks' vectors `index`, with `own` in this rank's place; `None` if one did not arrive in
    /// time.
    fn reduce<T: Element>(&self, index: usize, own: &Vector) -> Option<Vector> {
        packet::reduce_words::<T, _>(self.group, own, |source| self.receive(source, index))
    }
}

/// The areas of a launch in the memory of the host backend.
struct HostAreas<'a> {
    group: &'a HostGroup,
    launch: &'a Packets,
}

impl HostAreas<'_> {
    /// A word of an area, by its offset in bytes.
    fn at(&self, owner: usize, offset: usize) -> &AtomicU32 {
        let address = self.launch.area(owner).add(offset);
        // SAFETY: every area has these words, aligned and accessed by atomics only; it lives as long as the
        // launch.
        unsafe { AtomicU32::from_ptr(address.as_host()) }
    }
}

impl Areas for HostAreas<'_> {
    type Group = HostGroup;
    type Atomic = AtomicU32;

    fn group(&self) -> &HostGroup {
        self.group
    }

    fn word(&self, owner: usize, section: usize, index: usize, word: usize) -> &AtomicU32 {
        let vector = section * self.capacity() + index;
        self.at(owner, STATES + vector * VECTOR + word * size_of::<u32>())
    }

    fn state(&self, word: usize) -> &AtomicU32 {
        self.at(self.group.rank(), word * size_of::<u32>())
    }

    fn capacity(&self) -> usize {
        self.launch.capacity as usize
    }

    fn pause(&self, polls: u32) {
        packet::back_off(polls);
    }
}
