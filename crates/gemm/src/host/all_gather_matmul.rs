//! The host twin of the product that gathers: the same words, chunk after chunk.

use std::ops::Range;

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::{expect_signal, is_faulted, next_epoch, record, send_signal};

use super::panels;
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, GemmOperands, Protocol};

impl AllGatherGemmBackend for Host {
    type AllGatherPlan = AllGatherMatmul;

    fn all_gather_plan(&self, product: &AllGatherMatmul) -> Result<AllGatherMatmul, Error> {
        product.validate()?;
        for &a in product.a.iter().chain(product.own_stagings()) {
            let operands = GemmOperands::new(a, product.b, product.c).with_bias(product.bias);
            panels::check_addresses(&product.problem, operands)?;
        }
        Ok(product.clone())
    }

    fn all_gather_algorithm(_: &AllGatherMatmul) -> String {
        "host panels".into()
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        plan: &AllGatherMatmul,
    ) -> Result<(), Error> {
        let product = plan.clone();
        self.launch(stream, AllGatherMatmul::NAME, move || {
            // SAFETY: the obligations of these are those of this method, kept until the work has ended.
            let multiplied = unsafe {
                match product.protocol {
                    Protocol::Rendezvous { .. } => fetch_and_multiply(&product),
                    Protocol::Eager => write_and_multiply(&product),
                }
            };
            multiplied.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }
}

/// Multiplies this rank's rows, then those that are pushed, then fetches and multiplies chunk after chunk of the others.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn fetch_and_multiply(product: &AllGatherMatmul) -> Result<(), Error> {
    let (rank, world) = (product.rank(), product.world());
    let peers = || (1..world).map(|step| (rank + world - step) % world);
    // SAFETY: slots and ranks were checked. Every wait runs, whatever the others saw: each advances its own epoch. Rows are read
    // behind their owner's word, and before the word that gives them back.
    unsafe {
        let pushed = product.pushed_chunks();
        for peer in peers().filter(|_| pushed == 0) {
            send_signal(&product.pad, product.ready, peer);
        }
        multiply(product, &product.shards[rank], 0)?;
        // Where rows are pushed, who has none says nothing.
        let speaks = |peer: usize| pushed == 0 || !product.shards[peer].is_empty();
        let mut open = Vec::new();
        for peer in peers().filter(|&peer| speaks(peer)) {
            if expect_signal(&product.pad, product.ready, peer, 0) {
                open.push(peer);
                multiply(product, &product.pushed_rows(peer), 0)?;
            }
        }
        for chunk in pushed..product.chunks() {
            for &peer in &open {
                let rows = product.chunk(peer, chunk);
                if rows.is_empty() {
                    continue;
                }
                let offset = (rows.start - product.shards[peer].start) * product.row_bytes();
                let from = product.a[peer].add(offset).as_host::<u8>();
                let to = product.staged(rank, rows.start, 0).as_host();
                record::copy(from, to, rows.len() * product.row_bytes());
                multiply(product, &rows, 0)?;
            }
        }
        for peer in peers() {
            send_signal(&product.pad, product.done, peer);
        }
        for peer in peers() {
            expect_signal(&product.pad, product.done, peer, 0);
        }
    }
    Ok(())
}

/// Writes this rank's chunks into the staging of every other, says so of each, and multiplies its own rows and what the others wrote.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn write_and_multiply(product: &AllGatherMatmul) -> Result<(), Error> {
    let (rank, world) = (product.rank(), product.world());
    let (pad, slot) = (&product.pad, product.ready);
    let peers = || (1..world).map(|step| (rank + world - step) % world);
    // Who has no rows gives the first word all the same.
    let chunks = |owner: usize| {
        let rows = product.shards[owner].len();
        0..rows.div_ceil(product.chunk_rows).max(1)
    };
    // SAFETY: slots and ranks were checked. A peer's staging of this parity was read two calls ago, before it gave the words that this
    // rank has waited for in the call before. After a fault nothing is written. Every wait runs: each advances its own epoch.
    unsafe {
        // Every call waits for every peer once.
        let parity = match peers().next() {
            Some(peer) => next_epoch(pad, slot, peer) as usize % product.protocol.stagings(),
            None => 0,
        };
        for chunk in chunks(rank).filter(|_| !is_faulted(pad)) {
            let rows = product.chunk(rank, chunk);
            let offset = (rows.start - product.shards[rank].start) * product.row_bytes();
            let from = product.a[rank].add(offset).as_host::<u8>();
            for peer in peers() {
                let to = product.staged(peer, rows.start, parity).as_host();
                record::copy(from, to, rows.len() * product.row_bytes());
                send_signal(pad, slot + chunk, peer);
            }
        }
        multiply(product, &product.shards[rank], parity)?;
        for peer in peers() {
            let mut here = true;
            for chunk in chunks(peer) {
                here &= expect_signal(pad, slot + chunk, peer, 0);
            }
            if here {
                multiply(product, &product.shards[peer], parity)?;
            }
        }
    }
    Ok(())
}

/// The product of some rows of one shard.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`], and the rows are here.
unsafe fn multiply(
    product: &AllGatherMatmul,
    rows: &Range<usize>,
    parity: usize,
) -> Result<(), Error> {
    let (problem, operands) = product.part(rows, parity);
    match problem.m {
        0 => Ok(()),
        // SAFETY: the caller's obligation.
        _ => unsafe { panels::multiply_raw(&problem, operands) },
    }
}
