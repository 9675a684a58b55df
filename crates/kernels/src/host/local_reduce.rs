//! The host reference of `sum.cu`.

use warpweave_symm_mem::host::{Element, record};

use crate::{LocalReduce, Strided};

/// Elements that are added at a time.
const BATCH: usize = 512;

/// # Safety
/// As for [`KernelBackend::local_reduce`](crate::KernelBackend::local_reduce), for elements of type `T`.
pub(super) unsafe fn local_reduce<T: Element>(launch: &LocalReduce) {
    let at = |b: &Strided, row: usize, col: usize| {
        let offset = row * b.row_stride + col;
        // SAFETY: an element of a box that the caller guarantees.
        unsafe { b.address.as_host::<T>().add(offset) }
    };
    for row in 0..launch.rows {
        for col in (0..launch.cols).step_by(BATCH) {
            let count = BATCH.min(launch.cols - col);
            // Negative zero is the neutral element: positive zero would lose the sign of a sum of negative
            // zeros.
            let mut total = [-0.0f32; BATCH];
            let mut terms = [0.0f32; BATCH];
            for partial in launch.used() {
                // SAFETY: as above, for all elements of a part of a row, which nothing writes meanwhile.
                let partial = unsafe { record::read(at(partial, row, col), count) };
                T::widen(partial, &mut terms[..count]);
                for (total, term) in total.iter_mut().zip(&terms[..count]) {
                    *total += term;
                }
            }
            // SAFETY: as above; all partials of these elements have been read, should the destination be one
            // of them.
            let dst = unsafe { record::write(at(&launch.dst, row, col), count) };
            T::round(&total[..count], dst);
        }
    }
}
