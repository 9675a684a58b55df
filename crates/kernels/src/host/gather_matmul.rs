//! The host references of the gather kernels.

use std::ops::Range;

use warpweave_symm_mem::DevicePtr;
use warpweave_symm_mem::host::{Element, expect_signal, record, send_signal};

use super::gemm::{Gemm, ROWS};
use super::{entry, peers, rotation};
use crate::{GatherMatmul, GatherMode, shard};

/// Rows that are copied and multiplied while they are in the cache.
const CHUNK: usize = 8 * ROWS;

/// # Safety
/// As for [`KernelBackend::gather_matmul`](crate::KernelBackend::gather_matmul), for elements of type `T`.
pub(super) unsafe fn gather_matmul<T: Element>(launch: &GatherMatmul) {
    // SAFETY: the caller's obligations.
    unsafe {
        match launch.mode {
            GatherMode::ThreadLoad { a_peers, done } => threadload::<T>(launch, a_peers, done),
            GatherMode::Multimem {
                staging_peers,
                free,
                signal_free,
                ..
            } => {
                multimem::<T>(launch, staging_peers, free, signal_free);
            }
        }
    }
}

/// # Safety
/// As for [`gather_matmul`].
unsafe fn threadload<T: Element>(launch: &GatherMatmul, a_peers: DevicePtr, done: usize) {
    let GatherMatmul { ref pad, ready, .. } = *launch;
    let rank = pad.rank as usize;
    // SAFETY: slots and peers are in range; the caller guarantees tables and matrices; a peer's rows are read
    // between its signal `ready` and our `done`.
    unsafe {
        for peer in peers(pad) {
            send_signal(pad, ready, peer);
        }
        let gemm = gemm::<T>(launch);
        for owner in rotation(pad) {
            let here = owner == rank || expect_signal(pad, ready, owner, 0);
            if here {
                let a = entry::<T>(a_peers, owner);
                copy_rows(a, launch.staging.as_host(), rows(launch, owner), launch.k);
            }
            if owner != rank {
                send_signal(pad, done, owner);
            }
            if here {
                multiply::<T>(launch, gemm.as_ref(), owner);
            }
        }
        for peer in peers(pad) {
            expect_signal(pad, done, peer, 0);
        }
    }
}

/// # Safety
/// As for [`gather_matmul`].
unsafe fn multimem<T: Element>(
    launch: &GatherMatmul,
    staging_peers: DevicePtr,
    free: usize,
    signal_free: bool,
) {
    let GatherMatmul { ref pad, ready, .. } = *launch;
    let rank = pad.rank as usize;
    // SAFETY: slots and peers are in range; the caller guarantees tables and matrices. Rows are stored after
    // the peers' `free` and read between the owner's `ready` and our `free`.
    unsafe {
        // Every wait runs, even after a failed one, because each advances its own epoch.
        let mut credit = true;
        for peer in peers(pad) {
            credit &= expect_signal(pad, free, peer, 1);
        }
        if credit {
            for reader in rotation(pad) {
                let staging = entry::<T>(staging_peers, reader);
                copy_rows(launch.a.as_host(), staging, rows(launch, rank), launch.k);
            }
            for peer in peers(pad) {
                send_signal(pad, ready, peer);
            }
        }
        let gemm = gemm::<T>(launch);
        for owner in rotation(pad) {
            let here = if owner == rank {
                credit
            } else {
                expect_signal(pad, ready, owner, 0)
            };
            if here {
                multiply::<T>(launch, gemm.as_ref(), owner);
            }
            if signal_free && owner != rank {
                send_signal(pad, free, owner);
            }
        }
    }
}

fn rows(launch: &GatherMatmul, owner: usize) -> Range<usize> {
    shard(launch.m, owner, launch.pad.world as usize)
}

/// Prepares B, unless this is a gather without a GEMM.
///
/// # Safety
/// As for [`gather_matmul`].
unsafe fn gemm<T: Element>(launch: &GatherMatmul) -> Option<Gemm> {
    // SAFETY: the caller's obligations.
    (launch.n > 0).then(|| unsafe { Gemm::new::<T>(launch.b.as_host(), launch.n, launch.k) })
}

/// Copies a shard to its `rows` of a staging buffer.
///
/// # Safety
/// The shard has `rows.len()` rows of `k` elements and staging has all `rows`; no other thread accesses them.
unsafe fn copy_rows<T: Element>(shard: *const T, staging: *mut T, rows: Range<usize>, k: usize) {
    for first in (0..rows.len()).step_by(CHUNK) {
        let count = CHUNK.min(rows.len() - first);
        // SAFETY: the caller's obligations; rows are contiguous on both sides.
        unsafe {
            let to = staging.add((rows.start + first) * k);
            record::copy(shard.add(first * k), to, count * k);
        }
    }
}

/// Computes the rows of C that belong to `owner`'s rows of A from this rank's staging.
///
/// # Safety
/// As for [`gather_matmul`]; the rows are in staging.
unsafe fn multiply<T: Element>(launch: &GatherMatmul, gemm: Option<&Gemm>, owner: usize) {
    let Some(gemm) = gemm else { return };
    let rows = rows(launch, owner);
    // SAFETY: the rows lie in staging and in C.
    unsafe {
        let a = launch.staging.as_host::<T>().add(rows.start * launch.k);
        let c = launch.c.as_host::<T>().add(rows.start * launch.n);
        gemm.rows::<T>(a, c, rows.len());
    }
}
