//! The reference of `tree.cu`, which describes the protocol: partial results go up in f32, the result comes
//! down.

use super::group::{HostGroup, Member};
use super::packet::{Areas, HostAreas, Payload, Sections, packets_of};
use crate::collective::launch::{PACKET_SLOT, PAYLOAD, Tree};
use crate::collective::tree::NOBODY;
use warpweave_symm_mem::host::Element;

/// Consecutive units of one tree, before the other tree's: those of a warp.
const RUN: usize = 32;

/// Words of a packet.
const WORDS: usize = PAYLOAD / 4;

/// Most elements of a unit.
const ELEMENTS: usize = PAYLOAD / 2;

/// An all-reduce along two trees.
///
/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn all_reduce<T: Element>(launch: &Tree) {
    // SAFETY: the caller's obligations.
    unsafe {
        let group = HostGroup::new(&launch.packets.group);
        let areas = HostAreas::new(&group, &launch.packets);
        let epoch = group.epoch();
        let call = Call {
            sections: &Sections::new(&areas, epoch),
            trees: launch,
        };
        if group.is_sound(PACKET_SLOT) {
            call.all_reduce::<T>();
        }
        group.advance(epoch);
    }
}

/// A call as one rank sees it. The methods ask of their caller what [`all_reduce`] does.
pub(super) struct Call<'a, A> {
    /// The packets.
    pub sections: &'a Sections<'a, A>,
    /// The message and this rank's neighbours; group and areas are those of the sections.
    pub trees: &'a Tree,
}

/// Which tree carries a unit.
const fn tree_of(unit: usize) -> usize {
    (unit / RUN) & 1
}

/// Packets of a unit's partial results, which are also its places in a section.
const fn places<T>() -> usize {
    4 / size_of::<T>()
}

impl<A: Areas> Call<'_, A> {
    /// # Safety
    /// As for [`all_reduce`].
    pub(super) unsafe fn all_reduce<T: Element>(&self) {
        // SAFETY: the caller's obligation.
        unsafe {
            if self.reduce_up::<T>().is_some() {
                self.broadcast_down::<T>();
            }
        }
        self.scrub::<T>();
    }

    fn units(&self) -> usize {
        packets_of(self.bytes())
    }

    fn bytes(&self) -> usize {
        self.trees.packets.bytes as usize
    }

    fn parent(&self, unit: usize) -> Option<usize> {
        Some(self.trees.parent[tree_of(unit)])
            .filter(|&parent| parent != NOBODY)
            .map(|parent| parent as usize)
    }

    fn children(&self, unit: usize) -> impl Iterator<Item = usize> {
        let children = self.trees.children[tree_of(unit)];
        children
            .into_iter()
            .filter(|&child| child != NOBODY)
            .map(|child| child as usize)
    }

    fn send_down<T>(&self, unit: usize, data: &Payload) {
        for child in self.children(unit) {
            self.sections.send(child, unit * places::<T>(), data);
        }
    }

    /// # Safety
    /// As for [`all_reduce`].
    unsafe fn load<T: Element>(&self, unit: usize) -> [f32; ELEMENTS] {
        let count = (self.bytes() - unit * PAYLOAD).min(PAYLOAD) / size_of::<T>();
        let from = self.trees.packets.input.add(unit * PAYLOAD).as_host::<T>();
        let mut values = [0.0; ELEMENTS];
        // SAFETY: the elements lie in the message, aligned, and nothing writes them meanwhile.
        let elements = unsafe { std::slice::from_raw_parts(from, count) };
        T::widen(elements, &mut values[..count]);
        values
    }

    /// # Safety
    /// As for [`all_reduce`].
    unsafe fn store(&self, unit: usize, data: &Payload) {
        let count = (self.bytes() - unit * PAYLOAD).min(PAYLOAD);
        let to = self
            .trees
            .packets
            .output
            .add(unit * PAYLOAD)
            .as_host::<u8>();
        // SAFETY: the bytes lie in the message, which nothing else touches meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr().cast(), to, count) };
    }

    /// Sends partial results to the parent; those of the root are the result. `None` if a child's did not
    /// arrive in time: then nothing more is sent.
    ///
    /// # Safety
    /// As for [`all_reduce`].
    unsafe fn reduce_up<T: Element>(&self) -> Option<()> {
        for unit in 0..self.units() {
            // SAFETY: the caller's obligation.
            let mut sum = unsafe { self.load::<T>(unit) };
            let packets = WORDS * places::<T>();
            for child in self.children(unit) {
                for (place, sums) in sum[..packets].chunks_exact_mut(WORDS).enumerate() {
                    let index = unit * places::<T>() + place;
                    let data = self.sections.receive(child, index)?;
                    for (sum, word) in sums.iter_mut().zip(data) {
                        *sum += f32::from_bits(word);
                    }
                }
            }
            match self.parent(unit) {
                Some(parent) => {
                    for (place, sums) in sum[..packets].chunks_exact(WORDS).enumerate() {
                        let data = std::array::from_fn(|word| sums[word].to_bits());
                        let index = unit * places::<T>() + place;
                        self.sections.send(parent, index, &data);
                    }
                }
                None => {
                    let result = rounded::<T>(&sum);
                    self.send_down::<T>(unit, &result);
                    // SAFETY: the caller's obligation.
                    unsafe { self.store(unit, &result) };
                }
            }
        }
        Some(())
    }

    /// # Safety
    /// As for [`all_reduce`].
    unsafe fn broadcast_down<T: Element>(&self) -> Option<()> {
        for unit in 0..self.units() {
            if let Some(parent) = self.parent(unit) {
                let result = self.sections.receive(parent, unit * places::<T>())?;
                self.send_down::<T>(unit, &result);
                // SAFETY: the caller's obligation.
                unsafe { self.store(unit, &result) };
            }
        }
        Some(())
    }

    /// Each rank's packets have their own places.
    fn scrub<T>(&self) {
        let places = places::<T>();
        self.sections.scrub_unless(|source, index| {
            let unit = index / places;
            let going_up = self.children(unit).any(|child| child == source);
            let coming_down = self.parent(unit) == Some(source) && index % places == 0;
            unit < self.units() && (going_up || coming_down)
        });
    }
}

/// Rounds the reduced values of a unit to elements.
fn rounded<T: Element>(sums: &[f32; ELEMENTS]) -> Payload {
    let count = PAYLOAD / size_of::<T>();
    let mut elements = [T::default(); ELEMENTS];
    T::round(&sums[..count], &mut elements[..count]);
    let mut data = Payload::default();
    // SAFETY: so many elements fill a payload.
    unsafe {
        std::ptr::copy_nonoverlapping(elements.as_ptr().cast(), data.as_mut_ptr(), WORDS);
    }
    data
}
