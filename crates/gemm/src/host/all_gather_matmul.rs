//! The host twin of the product that gathers: the same words in the same order, chunk after chunk.

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::{expect_signal, send_signal};

use super::panels;
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, GemmOperands};

impl AllGatherGemmBackend for Host {
    type AllGatherPlan = AllGatherMatmul;

    fn all_gather_plan(&self, product: &AllGatherMatmul) -> Result<AllGatherMatmul, Error> {
        product.validate()?;
        let operands = GemmOperands::new(product.a, product.b, product.c);
        panels::check_addresses(&product.problem, operands)?;
        if product.world() > 1 {
            for &a in &product.staging {
                panels::check_addresses(&product.problem, GemmOperands { a, ..operands })?;
            }
        }
        Ok(product.clone())
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        plan: &AllGatherMatmul,
    ) -> Result<(), Error> {
        let product = plan.clone();
        self.launch(stream, AllGatherMatmul::NAME, move || {
            // SAFETY: the obligations of these are those of this method, kept until the work has ended.
            let done = unsafe {
                send(&product);
                multiply(&product)
            };
            done.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }
}

/// Sends this rank's shard to the peers that have freed the rows of the call before, the next rank first.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn send(product: &AllGatherMatmul) {
    let (rank, world) = (product.rank(), product.world());
    let peers = (1..world).map(|step| (rank + step) % world);
    // SAFETY: slots and ranks were checked. Every wait runs, whatever the others saw: each advances its own epoch. Rows are
    // written behind the credit of their reader and before the word that announces them.
    unsafe {
        let free: Vec<usize> = peers
            .filter(|&peer| expect_signal(&product.pad, product.free, peer, 1))
            .collect();
        for chunk in 0..product.chunks() {
            let rows = product.chunk(rank, chunk);
            if rows.is_empty() {
                break;
            }
            for &peer in &free {
                let to = product.staging[peer].add(rows.start * product.row_bytes());
                let from = product.row(rows.start).as_host::<u8>();
                let bytes = rows.len() * product.row_bytes();
                std::ptr::copy_nonoverlapping(from, to.as_host(), bytes);
                send_signal(&product.pad, product.ready + chunk, peer);
            }
        }
    }
}

/// Multiplies this rank's rows, then chunk after chunk of the others, and frees their places.
///
/// # Safety
/// As for [`AllGatherGemmBackend::all_gather_matmul`].
unsafe fn multiply(product: &AllGatherMatmul) -> Result<(), Error> {
    let (rank, world) = (product.rank(), product.world());
    let sources = || (1..world).map(|step| (rank + world - step) % world);
    let chunks = (0..product.chunks()).flat_map(|chunk| {
        let arrivals = sources().map(move |source| (source, chunk));
        arrivals.map(|(source, chunk)| (product.chunk(source, chunk), Some((source, chunk))))
    });
    let own = (product.shards[rank].clone(), None);
    for (rows, arrival) in std::iter::once(own).chain(chunks) {
        if rows.is_empty() {
            continue;
        }
        let (problem, operands) = product.part(&rows);
        // SAFETY: slots and ranks were checked; every wait runs, as in `send`. Rows are read behind the word that announces
        // them.
        unsafe {
            if arrival.is_none_or(|(source, chunk)| {
                expect_signal(&product.pad, product.ready + chunk, source, 0)
            }) {
                panels::multiply_raw(&problem, operands)?;
            }
        }
    }
    for peer in sources() {
        // SAFETY: as above; all rows of the peer have been read.
        unsafe { send_signal(&product.pad, product.free, peer) };
    }
    Ok(())
}
