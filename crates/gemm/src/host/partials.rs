//! Partials on the host: multiplied in f32, rounded into rows, added from rows.

use std::ops::Range;

use warpweave_symm_mem::host::record;
use warpweave_symm_mem::{DType, DevicePtr};

use super::{Element, panels};
use crate::Error;
use crate::matmul_reduce::{Group, Launch};

/// This rank's GEMM of some rows, scaled and not rounded, contiguous.
pub(super) fn partial(gemm: &Launch<'_>, rows: &Range<usize>) -> Result<Vec<f32>, Error> {
    let mut partial = vec![0.0f32; rows.len() * gemm.problem.n];
    let (problem, operands) = gemm.part(rows, DevicePtr(partial.as_mut_ptr() as u64));
    if problem.k > 0 {
        let mut wide = problem.with_output(DType::F32);
        wide.bias = false;
        wide.ldc = wide.n;
        // SAFETY: the caller of the launch vouches for A, B and scales; `partial` has the GEMM's size and is
        // this function's own.
        unsafe { panels::multiply_raw(&wide, operands)? };
    }
    Ok(partial)
}

/// Results to which nothing has been added: negative zero is the neutral element, since positive zero would
/// lose the sign of a sum of negative zeros.
pub(super) fn none(elements: usize) -> Vec<f32> {
    vec![-0.0; elements]
}

/// Rounds `values` into rows.
///
/// # Safety
/// They are there, each with elements of type `T`, as many as its values, and nothing else accesses them
/// meanwhile.
pub(super) unsafe fn round_rows<'a, T: Element>(
    rows: impl Iterator<Item = *mut T>,
    values: impl Iterator<Item = &'a [f32]>,
) {
    for (row, values) in rows.zip(values) {
        // SAFETY: the caller's obligation.
        T::round(values, unsafe { record::write(row, values.len()) });
    }
}

/// Adds rows to those of `results`, which have `width` elements.
///
/// # Safety
/// They are there, with as many elements of type `T`, and nothing writes them meanwhile.
pub(super) unsafe fn add_rows<T: Element>(
    results: &mut [f32],
    width: usize,
    rows: impl Iterator<Item = *mut T>,
) {
    let mut terms = vec![0.0f32; width];
    for (row, results) in rows.zip(results.chunks_exact_mut(width)) {
        // SAFETY: the caller's obligation.
        T::widen(unsafe { record::read(row, width) }, &mut terms);
        for (result, term) in results.iter_mut().zip(&terms) {
            *result += term;
        }
    }
}

/// The rows of a group within what lies for the whole shard from `base` on.
pub(super) fn rows_at<T>(
    gemm: &Launch<'_>,
    base: DevicePtr,
    group: &Group,
) -> impl Iterator<Item = *mut T> {
    let first = gemm.shards[group.owner].start;
    let rows = group.rows.start - first..group.rows.end - first;
    rows.map(move |row| gemm.row_from(base, row).as_host::<T>())
}

/// Rounds `values` into the rows of a group.
///
/// # Safety
/// They are there, with elements of type `T`, and nothing else accesses them meanwhile.
pub(super) unsafe fn store<T: Element>(
    gemm: &Launch<'_>,
    base: DevicePtr,
    group: &Group,
    values: &[f32],
) {
    let values = values.chunks_exact(gemm.problem.n);
    // SAFETY: the caller's obligation; a row has n elements.
    unsafe { round_rows(rows_at::<T>(gemm, base, group), values) };
}
