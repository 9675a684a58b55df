//! The references of `norm.cu`: rows that are added to a residual and normalized, by themselves or after
//! their reduction by packets.

use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::Element;

use super::elements;
use super::group::{HostGroup, Member};
use super::packet::{Areas, HostAreas, Payload, Sections};
use crate::collective::launch::{MAX_WORLD, PACKET_SLOT, PAYLOAD};
use crate::collective::norm::arithmetic::{add, normalize, quantize};
use crate::collective::norm::launch::{ReducedNorm, RowNorm, Shots, UNIT, UNIT_PACKETS};

/// The data of the packets of a unit.
type Unit = [Payload; UNIT_PACKETS];

/// # Safety
/// As for [`CollectiveKernels::add_rms_norm`](crate::CollectiveKernels::add_rms_norm), for elements of type
/// `T`.
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
/// As for [`CollectiveKernels::reduced_norm`](crate::CollectiveKernels::reduced_norm), for elements of type
/// `T`.
pub(super) unsafe fn reduced_norm<T: Element>(shots: Shots, launch: &ReducedNorm) {
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
                units: launch.norm.units(size_of::<T>()),
            };
            match shots {
                Shots::One => rows.one_shot::<T>(),
                Shots::Two => rows.two_shot::<T>(),
            }
        }
        group.advance(epoch);
    }
}

/// A call as one rank sees it. The methods ask of their caller what [`reduced_norm`] does.
struct Rows<'a, A> {
    sections: &'a Sections<'a, A>,
    launch: &'a ReducedNorm,
    /// Of a row.
    units: usize,
}

impl<A: Areas> Rows<'_, A> {
    fn peers(&self) -> impl Iterator<Item = usize> {
        self.sections.areas().peers()
    }

    /// A unit of this rank's partial, zero beyond the row's end.
    unsafe fn own<T: Element>(&self, row: usize, unit: usize) -> Unit {
        // SAFETY: the caller's obligation.
        let row = unsafe { read::<T>(self.launch.norm.input, row, &self.launch.norm) };
        let elements = UNIT / size_of::<T>();
        let part = &row[unit * elements..row.len().min((unit + 1) * elements)];
        let mut words = Unit::default();
        // SAFETY: a unit has as many bytes; `T` has no padding.
        unsafe {
            let to = words.as_mut_ptr().cast::<T>();
            std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
        }
        words
    }

    fn send(&self, peer: usize, packet: usize, unit: &Unit) {
        for (index, data) in unit.iter().enumerate() {
            self.sections.send(peer, packet + index, data);
        }
    }

    /// The unit that `source` sent to these packets; `None` if it did not arrive in time.
    fn receive(&self, source: usize, packet: usize) -> Option<Unit> {
        let mut unit = Unit::default();
        for (index, data) in unit.iter_mut().enumerate() {
            *data = self.sections.receive(source, packet + index)?;
        }
        Some(unit)
    }

    /// Reduces what all ranks have of a unit, with `own` in this rank's place.
    fn reduce<T: Element>(&self, packet: usize, own: &Unit) -> Option<Unit> {
        let mut all = [Unit::default(); MAX_WORLD];
        all[self.sections.areas().rank()] = *own;
        for source in self.peers() {
            all[source] = self.receive(source, packet)?;
        }
        let mut sum = Unit::default();
        let ranks = all[..self.sections.areas().world()].iter();
        // SAFETY: a unit holds so many elements and is aligned for them.
        unsafe {
            let count = UNIT_PACKETS * PAYLOAD / size_of::<T>();
            let into = std::slice::from_raw_parts_mut(sum.as_mut_ptr().cast::<T>(), count);
            elements::reduce(ranks.map(|unit| unit.as_ptr().cast()), into);
        }
        Some(sum)
    }

    /// Computes row `row` of what `unit` gives, if it gives all.
    unsafe fn compute<T: Element>(&self, row: usize, unit: impl Fn(usize) -> Option<Unit>) {
        let units: Option<Vec<Unit>> = (0..self.units).map(unit).collect();
        let Some(units) = units else { return };
        let hidden = self.launch.norm.hidden as usize;
        // SAFETY: the units hold the row, and are aligned for its elements; the rest is the caller's
        // obligation.
        unsafe {
            let x = std::slice::from_raw_parts(units.as_ptr().cast::<T>(), hidden);
            compute(&self.launch.norm, row, x);
        }
    }

    unsafe fn one_shot<T: Element>(&self) {
        let rows = self.launch.norm.rows as usize;
        let packet = |row, unit| UNIT_PACKETS * (row * self.units + unit);
        // SAFETY: the caller's obligation.
        unsafe {
            for (row, unit) in
                (0..rows).flat_map(|row| (0..self.units).map(move |unit| (row, unit)))
            {
                let own = self.own::<T>(row, unit);
                self.peers()
                    .for_each(|peer| self.send(peer, packet(row, unit), &own));
            }
            for row in 0..rows {
                self.compute::<T>(row, |unit| {
                    self.reduce::<T>(packet(row, unit), &self.own::<T>(row, unit))
                });
            }
        }
        self.sections.scrub(packet(rows, 0), 0);
    }

    unsafe fn two_shot<T: Element>(&self) {
        let (rows, chunk) = (self.launch.norm.rows as usize, self.launch.chunk as usize);
        let middle = self.sections.areas().capacity() / 2;
        let rank = self.sections.areas().rank();
        let packet = |row, unit| UNIT_PACKETS * (row % chunk * self.units + unit);
        let others = || (0..rows).filter(|row| row / chunk != rank);
        // SAFETY: the caller's obligation.
        unsafe {
            for (row, unit) in others().flat_map(|row| (0..self.units).map(move |unit| (row, unit)))
            {
                self.send(row / chunk, packet(row, unit), &self.own::<T>(row, unit));
            }
            for row in (rank * chunk..rows).take(chunk) {
                self.compute::<T>(row, |unit| {
                    let sum = self.reduce::<T>(packet(row, unit), &self.own::<T>(row, unit))?;
                    self.peers()
                        .for_each(|peer| self.send(peer, middle + packet(row, unit), &sum));
                    Some(sum)
                });
            }
            for row in others() {
                self.compute::<T>(row, |unit| {
                    self.receive(row / chunk, middle + packet(row, unit))
                });
            }
        }
        let used = UNIT_PACKETS * self.units * chunk;
        self.sections.scrub(used, used);
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
