//! The references of `norm.cu` and `sentinel_norm.cu`: rows that are added to a residual and normalized, by
//! themselves or after their reduction.

use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::Element;

use super::group::{HostGroup, Member};
use super::packet::{Areas, HostAreas, Payload, Sections, reduce_words};
use super::sentinel;
use crate::collective::launch::{PACKET_SLOT, PAYLOAD, Packets};
use crate::collective::norm::arithmetic::{add, normalize, quantize};
use crate::collective::norm::launch::{ReducedNorm, RowNorm};

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn add_rms_norm<T: Element>(norm: &RowNorm) {
    for row in 0..norm.rows as usize {
        // SAFETY: the caller's obligation.
        unsafe {
            let x = Vec::from(read::<T>(norm.input, row, norm));
            compute(norm, row, &x);
        }
    }
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn reduced_norm<T: Element>(launch: &ReducedNorm) {
    // SAFETY: the caller's obligations.
    unsafe {
        let group = HostGroup::new(&launch.packets.group);
        let areas = HostAreas::new(&group, &launch.packets);
        let epoch = group.epoch();
        if group.is_sound(PACKET_SLOT) {
            let sections = Sections::new(&areas, epoch);
            let rows = Rows {
                sections: &sections,
                launch,
                packets: launch.norm.packets(size_of::<T>()),
            };
            rows.all::<T>();
        }
        group.advance(epoch);
    }
}

/// # Safety
/// As for [`CollectiveKernels::launch_collective`](crate::CollectiveKernels::launch_collective), for elements
/// of type `T`.
pub(super) unsafe fn sentinel_norm<T: Element>(launch: &ReducedNorm) {
    let norm = &launch.norm;
    let mut sums = vec![T::default(); norm.rows as usize * norm.hidden as usize];
    let reduction = Packets {
        output: DevicePtr(sums.as_mut_ptr() as u64),
        ..launch.packets
    };
    // SAFETY: the caller's obligations; the sums have as many elements.
    unsafe {
        sentinel::all_reduce::<T>(&reduction);
        if HostGroup::new(&launch.packets.group).is_stopped() {
            return;
        }
        let rows = sums.chunks_exact(norm.hidden as usize);
        rows.enumerate().for_each(|(row, x)| compute(norm, row, x));
    }
}

/// A call as one rank sees it. The methods ask of their caller what [`reduced_norm`] does.
struct Rows<'a, A> {
    sections: &'a Sections<'a, A>,
    launch: &'a ReducedNorm,
    /// Of a row.
    packets: usize,
}

impl<A: Areas> Rows<'_, A> {
    fn peers(&self) -> impl Iterator<Item = usize> {
        self.sections.group().peers()
    }

    /// A payload of this rank's partial, zero beyond the row's end.
    unsafe fn own<T: Element>(&self, row: usize, packet: usize) -> Payload {
        // SAFETY: the caller's obligation.
        let row = unsafe { read::<T>(self.launch.norm.input, row, &self.launch.norm) };
        let elements = PAYLOAD / size_of::<T>();
        let part = &row[packet * elements..row.len().min((packet + 1) * elements)];
        let mut words = Payload::default();
        // SAFETY: a payload has as many bytes; `T` has no padding.
        unsafe {
            let to = words.as_mut_ptr().cast::<T>();
            std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
        }
        words
    }

    /// Reduces what all ranks have of packet `index`, with `own` in this rank's place; `None` if one did not
    /// arrive in time.
    fn reduce<T: Element>(&self, index: usize, own: &Payload) -> Option<Payload> {
        let receive = |source| self.sections.receive(source, index);
        reduce_words::<T, _>(self.sections.group(), own, receive)
    }

    /// Computes row `row` of what `payload` gives, if it gives all.
    unsafe fn compute<T: Element>(&self, row: usize, payload: impl Fn(usize) -> Option<Payload>) {
        let payloads: Option<Vec<Payload>> = (0..self.packets).map(payload).collect();
        let Some(payloads) = payloads else { return };
        let hidden = self.launch.norm.hidden as usize;
        // SAFETY: the payloads hold the row, and are aligned for its elements; the rest is the caller's
        // obligation.
        unsafe {
            let x = std::slice::from_raw_parts(payloads.as_ptr().cast::<T>(), hidden);
            compute(&self.launch.norm, row, x);
        }
    }

    /// The packets of some rows.
    fn of(&self, rows: impl Iterator<Item = usize>) -> impl Iterator<Item = (usize, usize)> {
        rows.flat_map(|row| (0..self.packets).map(move |packet| (row, packet)))
    }

    unsafe fn all<T: Element>(&self) {
        let rows = self.launch.norm.rows as usize;
        let place = |row, packet| row * self.packets + packet;
        // SAFETY: the caller's obligation.
        unsafe {
            for (row, packet) in self.of(0..rows) {
                let own = self.own::<T>(row, packet);
                self.peers()
                    .for_each(|peer| self.sections.send(peer, place(row, packet), &own));
            }
            for row in 0..rows {
                self.compute::<T>(row, |packet| {
                    self.reduce::<T>(place(row, packet), &self.own::<T>(row, packet))
                });
            }
        }
        self.sections.scrub(place(rows, 0));
    }
}

/// A row of a matrix of the call.
///
/// # Safety
/// The matrix has the row, which nothing writes while the slice lives.
unsafe fn read<'a, T: Element>(matrix: DevicePtr, row: usize, norm: &RowNorm) -> &'a [T] {
    let hidden = norm.hidden as usize;
    // SAFETY: the caller's obligation; matrices are aligned to elements.
    unsafe { std::slice::from_raw_parts(matrix.as_host::<T>().add(row * hidden), hidden) }
}

/// # Safety
/// The call's matrices have the row, and nothing else touches it.
unsafe fn compute<T: Element>(norm: &RowNorm, row: usize, x: &[T]) {
    let hidden = norm.hidden as usize;
    // SAFETY: the caller's obligation. No slice of a matrix lives when a result is stored.
    unsafe {
        let r = add(x, read(norm.residual, row, norm));
        let y = normalize(&r, read(norm.weight, 0, norm), norm.epsilon);
        store(norm.residual_out, row * hidden, &r);
        store(norm.normalized, row * hidden, &y);
        if norm.quantized != DevicePtr::NULL {
            let (quantized, scale) = quantize(&y);
            store(norm.quantized, row * hidden, &quantized);
            store(norm.scales, row, &[scale]);
        }
    }
}

/// Nothing where there is no result.
///
/// # Safety
/// The result has as many elements from `at` on, and nothing else touches them.
unsafe fn store<T: Copy>(result: DevicePtr, at: usize, values: &[T]) {
    if result != DevicePtr::NULL {
        // SAFETY: the caller's obligation.
        unsafe {
            let to = result.as_host::<T>().add(at);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }
}
