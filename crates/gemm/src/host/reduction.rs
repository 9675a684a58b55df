//! The host twin of the product with its sums: the same groups in the same order, by the same signals.

use half::{bf16, f16};
use warpweave_symm_mem::host::{expect_signal, is_faulted, send_signal};
use warpweave_symm_mem::{DType, DevicePtr, Host};

use super::{Element, panels};
use crate::reduction::{Group, Sums};
use crate::{Error, GemmOperands, ReducingGemmBackend, ReducingMatmul};

impl ReducingGemmBackend for Host {
    type ReducingPlan = ReducingMatmul;

    fn reducing_plan(&self, product: &ReducingMatmul) -> Result<ReducingMatmul, Error> {
        product.validate()?;
        let problem = product.with_terms();
        let written = product.sums().into_iter().map(|(_, c)| c);
        let staging = product.staging.iter().copied().chain([product.fetched]);
        for c in written.chain(staging.filter(|_| product.world() > 1)) {
            let operands = GemmOperands::new(product.a, product.b, c);
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
                    _ => reduce::<f32>(&product),
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
    let (pad, own) = (&product.pad, product.rank());
    let everyone = matches!(product.c, Sums::Everyone(_));
    let order = product.order();
    for group in &order {
        let Group { owner, index, .. } = *group;
        let (ready, over) = (product.ready + index, product.over + index);
        let partial = partial(product, group)?;
        // SAFETY: slots and ranks were checked. Staging is written behind the credit for it and read behind the words that
        // announce it. Every wait runs, whatever the others saw: each advances its own epoch. Behind one that was in vain
        // no memory of another rank is touched and nothing is announced.
        unsafe {
            if owner != own {
                let free = everyone || expect_signal(pad, over, owner, 1);
                if free && !is_faulted(pad) {
                    let part = product.staged(own, owner);
                    store::<T>(product, part, group, &partial);
                    send_signal(pad, ready, owner);
                }
                continue;
            }
            for peer in product.peers() {
                expect_signal(pad, ready, peer, 0);
            }
            if is_faulted(pad) {
                continue;
            }
            for peer in product.peers() {
                fetch::<T>(product, group, peer);
            }
            let sums = sum::<T>(product, group, &partial);
            for (_, c) in product.sums() {
                store::<T>(product, c, group, &sums);
            }
            for peer in product.peers() {
                send_signal(pad, over, peer);
            }
        }
    }
    for group in order.iter().filter(|group| everyone && group.owner != own) {
        // SAFETY: as above.
        unsafe { expect_signal(pad, product.over + group.index, group.owner, 0) };
    }
    Ok(())
}

/// This rank's product of the rows of a group, not rounded, contiguous.
fn partial(product: &ReducingMatmul, group: &Group) -> Result<Vec<f32>, Error> {
    let (problem, a) = product.part(&group.rows);
    let mut sums = vec![0.0f32; problem.m * problem.n];
    if problem.k > 0 {
        let mut wide = problem.with_output(DType::F32);
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
    let n = product.problem.n;
    for (row, values) in rows_at::<T>(product, base, group).zip(values.chunks_exact(n)) {
        // SAFETY: the caller's obligation; a row has n elements.
        T::round(values, unsafe { std::slice::from_raw_parts_mut(row, n) });
    }
}

/// Copies the part that `source` has of an own group.
///
/// # Safety
/// It is in the staging of `source`, with elements of type `T`, and nothing writes it or accesses its copy meanwhile.
unsafe fn fetch<T: Element>(product: &ReducingMatmul, group: &Group, source: usize) {
    let from = product.staged(source, product.rank());
    let rows = rows_at::<T>(product, from, group);
    for (from, to) in rows.zip(rows_at::<T>(product, product.fetched(source), group)) {
        // SAFETY: the caller's obligation; a row has n elements, and the two buffers are apart.
        unsafe { from.copy_to_nonoverlapping(to, product.problem.n) };
    }
}

/// The sums of an own group over all ranks, in their order; `partial` is this rank's.
///
/// # Safety
/// The parts of all others have been fetched, and nothing writes them meanwhile.
unsafe fn sum<T: Element>(product: &ReducingMatmul, group: &Group, partial: &[f32]) -> Vec<f32> {
    let n = product.problem.n;
    // From the neutral element: positive zero would lose the sign of a sum of negative zeros.
    let mut total = vec![-0.0f32; partial.len()];
    let mut part = vec![0.0f32; partial.len()];
    for source in 0..product.world() {
        let mut terms = partial;
        if source != product.rank() {
            let rows = rows_at::<T>(product, product.fetched(source), group);
            for (row, wide) in rows.zip(part.chunks_exact_mut(n)) {
                // SAFETY: the caller's obligation; a row has n elements.
                T::widen(unsafe { std::slice::from_raw_parts(row, n) }, wide);
            }
            terms = &part;
        }
        for (total, term) in total.iter_mut().zip(terms) {
            *total += term;
        }
    }
    total
}
