//! The reference of `sum.cu`.

use warpweave_symm_mem::host::{Element, record};

use crate::{Strided, Sum};

/// Elements that are added at once.
const BATCH: usize = 512;

/// # Safety
/// As for [`KernelBackend::sum`](crate::KernelBackend::sum), for elements of type `T`.
pub(super) unsafe fn sum<T: Element>(launch: &Sum) {
    let at = |b: &Strided, row: usize, col: usize| {
        let offset = row * b.row_stride + col;
        // SAFETY: an element of a box that the caller vouches for.
        unsafe { b.address.as_host::<T>().add(offset) }
    };
    for row in 0..launch.rows {
        for col in (0..launch.cols).step_by(BATCH) {
            let count = BATCH.min(launch.cols - col);
            // From the neutral element: positive zero would lose the sign of a sum of negative zeros.
            let mut total = [-0.0f32; BATCH];
            let mut terms = [0.0f32; BATCH];
            for summand in launch.used() {
                // SAFETY: as above, for all elements of a part of a row, which nothing writes meanwhile.
                let summand = unsafe { record::read(at(summand, row, col), count) };
                T::widen(summand, &mut terms[..count]);
                for (total, term) in total.iter_mut().zip(&terms[..count]) {
                    *total += term;
                }
            }
            // SAFETY: as above; all summands of these elements have been read, should the destination be one of them.
            let dst = unsafe { record::write(at(&launch.dst, row, col), count) };
            T::round(&total[..count], dst);
        }
    }
}
