//! The host twin of GEMM + all-reduce in one shot: unit by unit, by the same signals.

use std::ops::Range;

use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::{expect_signal, is_faulted, is_noticed, next_epoch, send_signal};

use super::{Element, partials};
use crate::Error;
use crate::matmul_reduce::Launch;

/// Rows and columns of C.
type Tile = [Range<usize>; 2];

/// # Safety
/// As for [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce), with `T` the
/// type of C.
pub(super) unsafe fn reduce<T: Element>(gemm: &Launch<'_>) -> Result<(), Error> {
    let (pad, own, ready) = (&gemm.operands.pad, gemm.rank, gemm.ready);
    let partial = partials::partial(gemm, &(0..gemm.problem.m))?;
    // SAFETY: slots and ranks were checked. A peer's staging of this parity was read two calls ago, before it
    // gave the flags that this rank has waited for in the call before. After a fault no peer is written to or
    // signalled. Every wait runs: each advances its own epoch.
    unsafe {
        // Every call waits for every peer once.
        let parity = match gemm.peers().next() {
            Some(peer) if gemm.units().count() > 0 => next_epoch(pad, ready, peer) as usize % 2,
            _ => 0,
        };
        for (unit, place) in gemm.units().all().enumerate() {
            store::<T>(gemm, gemm.left(own, own, parity), &place, &partial);
            if is_faulted(pad) {
                continue;
            }
            for peer in gemm.peers() {
                store::<T>(gemm, gemm.left(own, peer, parity), &place, &partial);
            }
            for peer in gemm.peers() {
                send_signal(pad, ready + unit, peer);
            }
        }
        for (unit, place) in gemm.units().all().enumerate() {
            for peer in gemm.peers() {
                expect_signal(pad, ready + unit, peer, 0);
            }
            if !is_noticed(pad) {
                reduce_unit::<T>(gemm, parity, &place);
            }
        }
    }
    Ok(())
}

/// The elements of each row of `place` in the matrix, as large as C, that begins at `base`.
fn rows_at<T>(
    gemm: &Launch<'_>,
    base: DevicePtr,
    [rows, columns]: &Tile,
) -> impl Iterator<Item = *mut T> {
    let first = columns.start * size_of::<T>();
    rows.clone()
        .map(move |row| gemm.row_from(base, row).add(first).as_host::<T>())
}

/// Rounds what `partial`, contiguous rows of C, has of `place`.
///
/// # Safety
/// The place is there, with elements of type `T`, and nothing else accesses it meanwhile.
unsafe fn store<T: Element>(gemm: &Launch<'_>, base: DevicePtr, place: &Tile, partial: &[f32]) {
    let [rows, columns] = place;
    let n = gemm.problem.n;
    let values = rows.clone().map(|row| &partial[row * n..][columns.clone()]);
    // SAFETY: the caller's obligation.
    unsafe { partials::round_rows(rows_at::<T>(gemm, base, place), values) };
}

/// Adds the partials of all ranks in their order, and the bias, to C.
///
/// # Safety
/// They are in this rank's staging, and nothing writes them meanwhile.
unsafe fn reduce_unit<T: Element>(gemm: &Launch<'_>, parity: usize, place: &Tile) {
    let [rows, columns] = place;
    let width = columns.len();
    let mut results = partials::none(rows.len() * width);
    for source in 0..gemm.world {
        let partials = gemm.left(source, gemm.rank, parity);
        // SAFETY: `width` elements of each row, by the caller's obligation.
        unsafe { partials::add_rows(&mut results, width, rows_at::<T>(gemm, partials, place)) };
    }
    // SAFETY: the bias has n elements, as the caller of the launch vouches; C is this rank's own.
    unsafe {
        if gemm.problem.bias {
            let bias = gemm.operands.bias.as_host::<T>().add(columns.start);
            partials::add_rows(&mut results, width, std::iter::repeat(bias));
        }
        let c = rows_at::<T>(gemm, gemm.own_results(), place);
        partials::round_rows(c, results.chunks_exact(width));
    }
}
