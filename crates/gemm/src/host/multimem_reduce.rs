//! The host twin of GEMM + all-reduce by multimem: the same groups in the same order, by the same signals.
//! The host backend's multicast is emulated: an owner loads from every rank's staging, adds in the order of
//! ranks, and stores to every rank's C.

use warpweave_symm_mem::host::{expect_signal, is_noticed, send_signal};

use super::{Element, partials};
use crate::Error;
use crate::matmul_reduce::{Group, Launch};

/// # Safety
/// As for [`GemmReduceBackend::matmul_reduce`](crate::GemmReduceBackend::matmul_reduce), with `T` the
/// type of C.
pub(super) unsafe fn reduce<T: Element>(gemm: &Launch<'_>) -> Result<(), Error> {
    let (pad, own) = (&gemm.operands.pad, gemm.rank);
    for group in &gemm.order() {
        let Group { owner, index, .. } = *group;
        let partial = partials::partial(gemm, &group.rows)?;
        // SAFETY: slots and ranks were checked. This rank's staging is written after `done` of the call
        // before, and that of others read after their `ready`, which they signal in a launch that has begun,
        // so that their C may be written. Every wait runs: each advances its own epoch. After one that failed
        // nothing is published or written to a peer.
        unsafe {
            if !is_noticed(pad) {
                partials::store::<T>(gemm, gemm.staged(own, owner), group, &partial);
                if owner != own {
                    send_signal(pad, gemm.ready + index, owner);
                }
            }
            if owner != own {
                continue;
            }
            for peer in gemm.peers() {
                expect_signal(pad, gemm.ready + index, peer, 0);
            }
            if is_noticed(pad) {
                continue;
            }
            let results = reduce_group::<T>(gemm, group);
            for &c in gemm.operands.c.iter() {
                let rows = gemm.row_from(c, gemm.shards[own].start);
                partials::store::<T>(gemm, rows, group, &results);
            }
        }
    }
    // SAFETY: as above.
    unsafe {
        for peer in gemm.peers() {
            send_signal(pad, gemm.done, peer);
        }
        for peer in gemm.peers() {
            expect_signal(pad, gemm.done, peer, 0);
        }
    }
    Ok(())
}

/// What the switch returns for an own group: the reduction of all ranks' partials.
///
/// # Safety
/// The partials are in all stagings, and nothing writes them meanwhile.
unsafe fn reduce_group<T: Element>(gemm: &Launch<'_>, group: &Group) -> Vec<f32> {
    let n = gemm.problem.n;
    let mut results = partials::none(group.rows.len() * n);
    for source in 0..gemm.world {
        let rows = partials::rows_at::<T>(gemm, gemm.staged(source, gemm.rank), group);
        // SAFETY: rows of n elements, by the caller's obligation.
        unsafe { partials::add_rows(&mut results, n, rows) };
    }
    results
}
