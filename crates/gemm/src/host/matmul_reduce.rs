//! The host twin of GEMM + reduction: the same groups in the same order, by the same signals.

use std::sync::Arc;

use warpweave_symm_mem::host::{expect_signal, is_noticed, record, send_signal};
use warpweave_symm_mem::{DevicePtr, Host, with_element};

use super::{Element, enqueue, multimem_reduce, one_shot, panels, partials};
use crate::matmul_reduce::{Group, Launch, ReduceOperands, ReduceOutput};
use crate::{Error, GemmReduceBackend, MatmulReduce};

impl GemmReduceBackend for Host {
    type PreparedReduce = Arc<MatmulReduce>;

    fn prepare_reduce(&self, _: &(), gemm: &MatmulReduce) -> Result<Arc<MatmulReduce>, Error> {
        gemm.validate()?;
        Ok(Arc::new(gemm.clone()))
    }

    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &Arc<MatmulReduce>,
        operands: &ReduceOperands,
    ) -> Result<(), Error> {
        let gemm = &**prepared;
        Launch { gemm, operands }.check(panels::alignment)?;
        let call = (prepared, *operands);
        enqueue(self, stream, MatmulReduce::NAME, call, |launch| {
            // SAFETY: the obligations of `reduce` are those of this method, kept until the work has ended.
            unsafe { with_element!(launch.problem.out, T => reduce::<T>(&launch)) }
        })
    }
}

/// # Safety
/// As for [`GemmReduceBackend::matmul_reduce`], with `T` the type of C.
unsafe fn reduce<T: Element>(gemm: &Launch<'_>) -> Result<(), Error> {
    match gemm.c {
        // SAFETY: the caller's obligation.
        ReduceOutput::Each => return unsafe { one_shot::reduce::<T>(gemm) },
        // SAFETY: the caller's obligation.
        ReduceOutput::Multimem => return unsafe { multimem_reduce::reduce::<T>(gemm) },
        ReduceOutput::Owner | ReduceOutput::Everyone => {}
    }
    let (pad, own) = (&gemm.operands.pad, gemm.rank);
    let everyone = gemm.c == ReduceOutput::Everyone;
    let order = gemm.order();
    for group in &order {
        let Group { owner, index, .. } = *group;
        let partial = partials::partial(gemm, &group.rows)?;
        // SAFETY: slots and ranks were checked. This rank's memory is written after `done` of the call
        // before, and that of others read after the flags that publish it. Every wait runs, whatever the
        // others saw: each advances its own epoch. After one that failed nothing is pulled or published. That
        // another pad's wait failed is no reason to leave partials out: this pad would not report it.
        unsafe {
            if owner != own {
                if !is_noticed(pad) {
                    partials::store::<T>(gemm, gemm.staged(own, owner), group, &partial);
                    send_signal(pad, gemm.ready + index, owner);
                }
                continue;
            }
            for peer in gemm.peers() {
                expect_signal(pad, gemm.ready + index, peer, 0);
            }
            if is_noticed(pad) {
                continue;
            }
            for peer in gemm.peers() {
                let from = gemm.staged(peer, own);
                copy::<T>(gemm, group, from, gemm.pulled(peer));
            }
            let results = reduce_group::<T>(gemm, group, partial);
            for to in [gemm.own_results()].into_iter().chain(gemm.local_results()) {
                partials::store::<T>(gemm, to, group, &results);
            }
            for peer in gemm.peers().filter(|_| everyone) {
                send_signal(pad, gemm.reduced + index, peer);
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        if everyone {
            for group in order.iter().filter(|group| group.owner != own) {
                let Group { owner, index, .. } = *group;
                expect_signal(pad, gemm.reduced + index, owner, 0);
                if !is_noticed(pad) {
                    let [from, to] = [gemm.operands.c[owner], gemm.own_c()]
                        .map(|c| gemm.row_from(c, gemm.shards[owner].start));
                    copy::<T>(gemm, group, from, to);
                }
            }
        }
        for peer in gemm.peers() {
            send_signal(pad, gemm.done, peer);
        }
        for peer in gemm.peers() {
            expect_signal(pad, gemm.done, peer, 0);
        }
    }
    Ok(())
}

/// Copies the rows of a group.
///
/// # Safety
/// They are in both places, with elements of type `T`, and nothing writes the first or accesses the second
/// meanwhile.
unsafe fn copy<T: Element>(gemm: &Launch<'_>, group: &Group, from: DevicePtr, to: DevicePtr) {
    let rows = partials::rows_at::<T>(gemm, from, group);
    for (from, to) in rows.zip(partials::rows_at::<T>(gemm, to, group)) {
        // SAFETY: the caller's obligation; a row has n elements, and the two places are apart.
        unsafe { record::copy(from, to, gemm.problem.n) };
    }
}

/// Reduces an own group over all ranks: the partials, this rank's rounded as the others' are, in the
/// order of ranks, and the bias.
///
/// # Safety
/// The partials of all others have been pulled, and nothing writes them meanwhile.
unsafe fn reduce_group<T: Element>(
    gemm: &Launch<'_>,
    group: &Group,
    partial: Vec<f32>,
) -> Vec<f32> {
    let n = gemm.problem.n;
    let mut own = vec![T::default(); partial.len()];
    T::round(&partial, &mut own);
    let mut results = partials::none(partial.len());
    for source in 0..gemm.world {
        if source == gemm.rank {
            let rows = own.chunks_exact_mut(n).map(<[T]>::as_mut_ptr);
            // SAFETY: rows of n elements of this function's own.
            unsafe { partials::add_rows(&mut results, n, rows) };
            continue;
        }
        let rows = partials::rows_at::<T>(gemm, gemm.pulled(source), group);
        // SAFETY: rows of n elements, by the caller's obligation.
        unsafe { partials::add_rows(&mut results, n, rows) };
    }
    if gemm.problem.bias {
        let bias = std::iter::repeat(gemm.operands.bias.as_host::<T>());
        // SAFETY: the bias has n elements, as the caller of the launch vouches.
        unsafe { partials::add_rows(&mut results, n, bias) };
    }
    results
}
