//! The host twin of the all-gather GEMM: the same flags, chunk by chunk.

use std::ops::Range;
use std::sync::Arc;

use warpweave_symm_mem::host::{expect_signal, is_faulted, next_epoch, record, send_signal};
use warpweave_symm_mem::{DevicePtr, Host};

use super::{enqueue, panels};
use crate::all_gather_matmul::{AllGatherOperands, Launch};
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, Protocol};

impl AllGatherGemmBackend for Host {
    type PreparedAllGather = Arc<AllGatherMatmul>;

    fn prepare_all_gather(
        &self,
        _: &(),
        gemm: &AllGatherMatmul,
    ) -> Result<Arc<AllGatherMatmul>, Error> {
        gemm.validate()?;
        Ok(Arc::new(gemm.clone()))
    }

    fn all_gather_algorithm(_: &Arc<AllGatherMatmul>) -> String {
        "host panels".into()
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &Arc<AllGatherMatmul>,
        operands: &AllGatherOperands,
    ) -> Result<(), Error> {
        let gemm = &**prepared;
        Launch { gemm, operands }.check(panels::alignment)?;
        let call = (prepared, *operands);
        enqueue(self, stream, AllGatherMatmul::NAME, call, |launch| {
            // SAFETY: the obligations of these are those of this method, kept until the work has ended.
            unsafe {
                match launch.protocol {
                    Protocol::Rendezvous { .. } => pull_and_multiply(launch),
                    Protocol::Eager => write_and_multiply(launch),
                }
            }
        })
    }
}

/// Multiplies this rank's rows, then those that are pushed, then pulls and multiplies chunk after chunk of
/// the others.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn pull_and_multiply(gemm: Launch<'_>) -> Result<(), Error> {
    let (rank, world, pad) = (gemm.rank, gemm.world, &gemm.operands.pad);
    let peers = || (1..world).map(|step| (rank + world - step) % world);
    // SAFETY: slots and ranks were checked. Every wait runs, whatever the others saw: each advances its own
    // epoch. Rows are read after their owner's flag, and before the flag that gives them back.
    unsafe {
        let pushed = gemm.pushed_chunks();
        let copied = gemm.copied_a();
        if copied != DevicePtr::NULL {
            let bytes = gemm.shards[rank].len() * gemm.row_bytes();
            record::copy(gemm.own_a().as_host::<u8>(), copied.as_host(), bytes);
        }
        for peer in peers().filter(|_| pushed == 0) {
            send_signal(pad, gemm.ready, peer);
        }
        multiply(gemm, &gemm.shards[rank], 0)?;
        // Where rows are pushed, who has none says nothing.
        let speaks = |peer: usize| pushed == 0 || !gemm.shards[peer].is_empty();
        let mut open = Vec::new();
        for peer in peers().filter(|&peer| speaks(peer)) {
            if expect_signal(pad, gemm.ready, peer, 0) {
                open.push(peer);
                copy_scales(gemm, (peer, rank), &gemm.shards[peer], 0);
                multiply(gemm, &gemm.pushed_rows(peer), 0)?;
            }
        }
        for chunk in pushed..gemm.chunks() {
            for &peer in &open {
                let rows = gemm.chunk(peer, chunk);
                if rows.is_empty() {
                    continue;
                }
                let offset = (rows.start - gemm.shards[peer].start) * gemm.row_bytes();
                let from = gemm.operands.a[peer].add(offset).as_host::<u8>();
                let to = gemm.staged(rank, rows.start, 0).as_host();
                record::copy(from, to, rows.len() * gemm.row_bytes());
                multiply(gemm, &rows, 0)?;
            }
        }
        for peer in peers() {
            send_signal(pad, gemm.done, peer);
        }
        for peer in peers() {
            expect_signal(pad, gemm.done, peer, 0);
        }
    }
    Ok(())
}

/// Writes this rank's chunks into the staging of every other, says so of each, and multiplies its own rows
/// and what the others wrote.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn write_and_multiply(gemm: Launch<'_>) -> Result<(), Error> {
    let (rank, world) = (gemm.rank, gemm.world);
    let (pad, slot) = (&gemm.operands.pad, gemm.ready);
    let peers = || (1..world).map(|step| (rank + world - step) % world);
    // Who has no rows gives the first flag all the same.
    let chunks = |owner: usize| {
        let rows = gemm.shards[owner].len();
        0..rows.div_ceil(gemm.chunk_rows).max(1)
    };
    // SAFETY: slots and ranks were checked. A peer's staging of this parity was read two calls ago, before it
    // gave the flags that this rank has waited for in the call before. After a fault nothing is written.
    // Every wait runs: each advances its own epoch.
    unsafe {
        // Every call waits for every peer once.
        let parity = match peers().next() {
            Some(peer) => next_epoch(pad, slot, peer) as usize % gemm.protocol.stagings(),
            None => 0,
        };
        for chunk in chunks(rank).filter(|_| !is_faulted(pad)) {
            let rows = gemm.chunk(rank, chunk);
            let offset = (rows.start - gemm.shards[rank].start) * gemm.row_bytes();
            let from = gemm.operands.a[rank].add(offset).as_host::<u8>();
            for peer in peers() {
                let to = gemm.staged(peer, rows.start, parity).as_host();
                record::copy(from, to, rows.len() * gemm.row_bytes());
                copy_scales(gemm, (rank, peer), &rows, parity);
                send_signal(pad, slot + chunk, peer);
            }
        }
        multiply(gemm, &gemm.shards[rank], parity)?;
        for peer in peers() {
            let mut here = true;
            for chunk in chunks(peer) {
                here &= expect_signal(pad, slot + chunk, peer, 0);
            }
            if here {
                multiply(gemm, &gemm.shards[peer], parity)?;
            }
        }
    }
    Ok(())
}

/// Copies the scales of rows of the shard of `owner`, if rows have some, into the staging of `to`.
///
/// # Safety
/// They are in both places, and nothing writes the first or accesses the second meanwhile.
unsafe fn copy_scales(
    gemm: Launch<'_>,
    (owner, to): (usize, usize),
    rows: &Range<usize>,
    parity: usize,
) {
    if gemm.has_row_scales() && !rows.is_empty() {
        let from = gemm.shard_scale(owner, rows.start).as_host::<f32>();
        let to = gemm.staged_scale(to, rows.start, parity).as_host();
        // SAFETY: the caller's obligation.
        unsafe { record::copy(from, to, rows.len()) };
    }
}

/// The GEMM of some rows of one shard.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`], and the rows are here.
unsafe fn multiply(gemm: Launch<'_>, rows: &Range<usize>, parity: usize) -> Result<(), Error> {
    let (problem, operands) = gemm.part(rows, parity);
    match problem.m {
        0 => Ok(()),
        // SAFETY: the caller's obligation.
        _ => unsafe { panels::multiply_raw(&problem, operands) },
    }
}
