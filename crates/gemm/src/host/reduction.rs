//! The host twin of the product with its sums: the same groups in the same order, by the same signals.

use std::ops::Range;

use half::{bf16, f16};
use warpweave_symm_mem::host::{expect_signal, is_noticed, record, send_signal};
use warpweave_symm_mem::{DType, DevicePtr, Host};

use super::{Element, one_shot, panels};
use crate::reduction::{Group, Sums};
use crate::{Error, GemmOperands, ReducingGemmBackend, ReducingMatmul};

impl ReducingGemmBackend for Host {
    type ReducingPlan = ReducingMatmul;

    fn reducing_plan(&self, product: &ReducingMatmul) -> Result<ReducingMatmul, Error> {
        product.validate()?;
        let problem = product.with_terms();
        let staging = product.staging.iter().copied();
        let parts: Vec<DevicePtr> = match product.c {
            Sums::Each(_) => staging.collect(),
            _ if product.world() > 1 => staging.chain([product.fetched]).collect(),
            _ => Vec::new(),
        };
        let copies = match &product.c {
            Sums::Owner(c) | Sums::Each(c) => std::slice::from_ref(c),
            Sums::Everyone(copies) => copies,
        };
        for &c in copies.iter().chain(&parts) {
            let operands = GemmOperands::new(product.a, product.b, c).with_bias(product.bias);
            panels::check_addresses(&problem, operands)?;
        }
        Ok(product.clone())
    }

    unsafe fn reducing_matmul(
        &self,
        stream: &Self::Stream,
        plan: &ReducingMatmul,
    ) -> Result<(), Error> {
        let product = plan.clone();
        self.launch(stream, ReducingMatmul::NAME, move || {
            // SAFETY: the obligations of `reduce` are those of this method, kept until the work has ended.
            let done = unsafe {
                match product.problem.dtype {
                    DType::F16 => reduce::<f16>(&product),
                    DType::Bf16 => reduce::<bf16>(&product),
                    DType::F32 => reduce::<f32>(&product),
                }
            };
            done.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }
}

/// # Safety
/// As for [`ReducingGemmBackend::reducing_matmul`], with `T` the problem's type.
unsafe fn reduce<T: Element>(product: &ReducingMatmul) -> Result<(), Error> {
    if let Sums::Each(_) = product.c {
        // SAFETY: the caller's obligation.
        return unsafe { one_shot::reduce::<T>(product) };
    }
    let (pad, own) = (&product.pad, product.rank());
    let everyone = matches!(product.c, Sums::Everyone(_));
    let order = product.order();
    for group in &order {
        let Group { owner, index, .. } = *group;
        let partial = partial(product, &group.rows)?;
        // SAFETY: slots and ranks were checked. This rank's memory is written behind `done` of the call before, and that of
        // others read behind the words that announce it. Every wait runs, whatever the others saw: each advances its own
        // epoch. After one that failed nothing is fetched or announced. That another pad's wait failed is no reason to leave
        // sums out: this pad would not tell.
        unsafe {
            if owner != own {
                if !is_noticed(pad) {
                    store::<T>(product, product.staged(own, owner), group, &partial);
                    send_signal(pad, product.ready + index, owner);
                }
                continue;
            }
            for peer in product.peers() {
                expect_signal(pad, product.ready + index, peer, 0);
            }
            if is_noticed(pad) {
                continue;
            }
            for peer in product.peers() {
                let from = product.staged(peer, own);
                copy::<T>(product, group, from, product.fetched(peer));
            }
            let sums = sum::<T>(product, group, partial);
            store::<T>(product, product.own_sums(), group, &sums);
            for peer in product.peers().filter(|_| everyone) {
                send_signal(pad, product.summed + index, peer);
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        if let Sums::Everyone(copies) = &product.c {
            for group in order.iter().filter(|group| group.owner != own) {
                let Group { owner, index, .. } = *group;
                expect_signal(pad, product.summed + index, owner, 0);
                if !is_noticed(pad) {
                    let [from, to] = [owner, own]
                        .map(|rank| product.row_from(copies[rank], product.shards[owner].start));
                    copy::<T>(product, group, from, to);
                }
            }
        }
        for peer in product.peers() {
            send_signal(pad, product.done, peer);
        }
        for peer in product.peers() {
            expect_signal(pad, product.done, peer, 0);
        }
    }
    Ok(())
}

/// This rank's product of some rows, not rounded, contiguous.
pub(super) fn partial(product: &ReducingMatmul, rows: &Range<usize>) -> Result<Vec<f32>, Error> {
    let (problem, a) = product.part(rows);
    let mut sums = vec![0.0f32; problem.m * problem.n];
    if problem.k > 0 {
        let mut wide = problem.with_output(DType::F32);
        wide.bias = false;
        wide.ldc = wide.n;
        let c = DevicePtr(sums.as_mut_ptr() as u64);
        // SAFETY: the caller of the launch vouches for A and B; `sums` has the product's size and is this function's own.
        unsafe { panels::multiply_raw(&wide, GemmOperands::new(a, product.b, c))? };
    }
    Ok(sums)
}

/// The rows of a group within what lies for the whole shard from `base` on.
fn rows_at<T>(
    product: &ReducingMatmul,
    base: DevicePtr,
    group: &Group,
) -> impl Iterator<Item = *mut T> {
    let first = product.shards[group.owner].start;
    let rows = group.rows.start - first..group.rows.end - first;
    rows.map(move |row| product.row_from(base, row).as_host::<T>())
}

/// Rounds `values` into rows.
///
/// # Safety
/// They are there, each with elements of type `T`, as many as its values, and nothing else accesses them meanwhile.
pub(super) unsafe fn round_rows<'a, T: Element>(
    rows: impl Iterator<Item = *mut T>,
    values: impl Iterator<Item = &'a [f32]>,
) {
    for (row, values) in rows.zip(values) {
        // SAFETY: the caller's obligation.
        T::round(values, unsafe { record::write(row, values.len()) });
    }
}

/// Adds rows to those of `sums`, which have `width` elements.
///
/// # Safety
/// They are there, with as many elements of type `T`, and nothing writes them meanwhile.
pub(super) unsafe fn add_rows<T: Element>(
    sums: &mut [f32],
    width: usize,
    rows: impl Iterator<Item = *mut T>,
) {
    let mut terms = vec![0.0f32; width];
    for (row, sums) in rows.zip(sums.chunks_exact_mut(width)) {
        // SAFETY: the caller's obligation.
        T::widen(unsafe { record::read(row, width) }, &mut terms);
        for (sum, term) in sums.iter_mut().zip(&terms) {
            *sum += term;
        }
    }
}

/// Rounds `values` into the rows of a group.
///
/// # Safety
/// They are there, with elements of type `T`, and nothing else accesses them meanwhile.
unsafe fn store<T: Element>(
    product: &ReducingMatmul,
    base: DevicePtr,
    group: &Group,
    values: &[f32],
) {
    let values = values.chunks_exact(product.problem.n);
    // SAFETY: the caller's obligation; a row has n elements.
    unsafe { round_rows(rows_at::<T>(product, base, group), values) };
}

/// Copies the rows of a group.
///
/// # Safety
/// They are in both places, with elements of type `T`, and nothing writes the first or accesses the second meanwhile.
unsafe fn copy<T: Element>(
    product: &ReducingMatmul,
    group: &Group,
    from: DevicePtr,
    to: DevicePtr,
) {
    let rows = rows_at::<T>(product, from, group);
    for (from, to) in rows.zip(rows_at::<T>(product, to, group)) {
        // SAFETY: the caller's obligation; a row has n elements, and the two places are apart.
        unsafe { record::copy(from, to, product.problem.n) };
    }
}

/// The sums of an own group over all ranks: to `partial`, this rank's, those of the others are added in their order, and the
/// bias.
///
/// # Safety
/// The parts of all others have been fetched, and nothing writes them meanwhile.
unsafe fn sum<T: Element>(product: &ReducingMatmul, group: &Group, partial: Vec<f32>) -> Vec<f32> {
    let n = product.problem.n;
    let mut sums = partial;
    for source in (0..product.world()).filter(|&source| source != product.rank()) {
        let rows = rows_at::<T>(product, product.fetched(source), group);
        // SAFETY: rows of n elements, by the caller's obligation.
        unsafe { add_rows(&mut sums, n, rows) };
    }
    if product.problem.bias {
        let bias = std::iter::repeat(product.bias.as_host::<T>());
        // SAFETY: the bias has n elements, as the caller of the launch vouches.
        unsafe { add_rows(&mut sums, n, bias) };
    }
    sums
}
