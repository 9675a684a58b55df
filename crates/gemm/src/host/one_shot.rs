//! The host twin of the product whose sums every rank makes by itself: unit after unit, by the same signals.

use std::ops::Range;

use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::{expect_signal, is_faulted, is_noticed, next_epoch, send_signal};

use super::{Element, reduction};
use crate::{Error, ReducingMatmul};

/// Rows and columns of C.
type Place = [Range<usize>; 2];

/// # Safety
/// As for [`ReducingGemmBackend::reducing_matmul`](crate::ReducingGemmBackend::reducing_matmul), with `T` the problem's type.
pub(super) unsafe fn reduce<T: Element>(product: &ReducingMatmul) -> Result<(), Error> {
    let (pad, own, ready) = (&product.pad, product.rank(), product.ready);
    let partial = reduction::partial(product, &(0..product.problem.m))?;
    // SAFETY: slots and ranks were checked. A peer's staging of this parity was read two calls ago, before it gave the words that this
    // rank has waited for in the call before. After a fault no peer is written to or signalled. Every wait runs: each advances its own
    // epoch.
    unsafe {
        // Every call waits for every peer once.
        let parity = match product.peers().next() {
            Some(peer) if product.units().count() > 0 => next_epoch(pad, ready, peer) as usize % 2,
            _ => 0,
        };
        for (unit, place) in product.units().all().enumerate() {
            store::<T>(product, product.left(own, own, parity), &place, &partial);
            if is_faulted(pad) {
                continue;
            }
            for peer in product.peers() {
                store::<T>(product, product.left(own, peer, parity), &place, &partial);
            }
            for peer in product.peers() {
                send_signal(pad, ready + unit, peer);
            }
        }
        for (unit, place) in product.units().all().enumerate() {
            for peer in product.peers() {
                expect_signal(pad, ready + unit, peer, 0);
            }
            if !is_noticed(pad) {
                sum::<T>(product, parity, &place);
            }
        }
    }
    Ok(())
}

/// The elements of each row of `place` in the matrix, as large as C, that begins at `base`.
fn rows_at<T>(
    product: &ReducingMatmul,
    base: DevicePtr,
    [rows, columns]: &Place,
) -> impl Iterator<Item = *mut T> {
    let first = columns.start * size_of::<T>();
    rows.clone()
        .map(move |row| product.row_from(base, row).add(first).as_host::<T>())
}

/// Rounds what `partial`, contiguous rows of C, has of `place`.
///
/// # Safety
/// The place is there, with elements of type `T`, and nothing else accesses it meanwhile.
unsafe fn store<T: Element>(
    product: &ReducingMatmul,
    base: DevicePtr,
    place: &Place,
    partial: &[f32],
) {
    let [rows, columns] = place;
    let n = product.problem.n;
    let values = rows.clone().map(|row| &partial[row * n..][columns.clone()]);
    // SAFETY: the caller's obligation.
    unsafe { reduction::round_rows(rows_at::<T>(product, base, place), values) };
}

/// Adds the parts of all ranks in their order, and the bias, to C.
///
/// # Safety
/// They are in this rank's staging, and nothing writes them meanwhile.
unsafe fn sum<T: Element>(product: &ReducingMatmul, parity: usize, place: &Place) {
    let [rows, columns] = place;
    let width = columns.len();
    let mut sums = vec![0.0f32; rows.len() * width];
    for source in 0..product.world() {
        let parts = product.left(source, product.rank(), parity);
        // SAFETY: `width` elements of each row, by the caller's obligation.
        unsafe { reduction::add_rows(&mut sums, width, rows_at::<T>(product, parts, place)) };
    }
    // SAFETY: the bias has n elements, as the caller of the launch vouches; C is this rank's own.
    unsafe {
        if product.problem.bias {
            let bias = product.bias.as_host::<T>().add(columns.start);
            reduction::add_rows(&mut sums, width, std::iter::repeat(bias));
        }
        let c = rows_at::<T>(product, product.own_sums(), place);
        reduction::round_rows(c, sums.chunks_exact(width));
    }
}
