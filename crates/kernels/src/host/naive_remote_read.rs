//! The host reference of `naive_remote_read.cu`.

use warpweave_symm_mem::host::{Element, expect_signal, send_signal};

use super::gemm::Gemm;
use super::{entry, peers, rotation};
use crate::{NaiveRemoteRead, shard};

/// # Safety
/// As for [`KernelBackend::naive_remote_read`](crate::KernelBackend::naive_remote_read), for elements of type
/// `T`.
pub(super) unsafe fn naive_remote_read<T: Element>(launch: &NaiveRemoteRead) {
    let NaiveRemoteRead {
        a_peers,
        b,
        c,
        m,
        n,
        k,
        ref pad,
        ready,
        done,
        ..
    } = *launch;
    let (rank, world) = (pad.rank as usize, pad.world as usize);
    // SAFETY: slots and peers are in range; the caller guarantees tables and matrices; a peer's rows are read
    // between its signal `ready` and our `done`.
    unsafe {
        for peer in peers(pad) {
            send_signal(pad, ready, peer);
        }
        let gemm = Gemm::new::<T>(b.as_host(), n, k);
        for owner in rotation(pad) {
            if owner == rank || expect_signal(pad, ready, owner, 0) {
                let rows = shard(m, owner, world);
                let c = c.as_host::<T>().add(rows.start * n);
                gemm.rows::<T>(entry(a_peers, owner), c, rows.len());
            }
            if owner != rank {
                send_signal(pad, done, owner);
            }
        }
        for peer in peers(pad) {
            expect_signal(pad, done, peer, 0);
        }
    }
}
