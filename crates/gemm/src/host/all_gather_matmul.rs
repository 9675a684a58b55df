//! The host twin of the product that gathers: the same words, chunk after chunk.

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::{expect_signal, send_signal};

use super::panels;
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, GemmOperands};

impl AllGatherGemmBackend for Host {
    type AllGatherPlan = AllGatherMatmul;

    fn all_gather_plan(&self, product: &AllGatherMatmul) -> Result<AllGatherMatmul, Error> {
        product.validate()?;
        for &a in product.a.iter().chain([&product.staging]) {
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
            let multiplied = unsafe { multiply(&product) };
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
unsafe fn multiply(product: &AllGatherMatmul) -> Result<(), Error> {
    let (rank, world) = (product.rank(), product.world());
    let peers = || (1..world).map(|step| (rank + world - step) % world);
    // SAFETY: slots and ranks were checked. Every wait runs, whatever the others saw: each advances its own epoch. Rows are read
    // behind their owner's word, and before the word that gives them back.
    unsafe {
        let pushed = product.pushed_chunks();
        for peer in peers().filter(|_| pushed == 0) {
            send_signal(&product.pad, product.ready, peer);
        }
        let (problem, operands) = product.part(&product.shards[rank]);
        if problem.m > 0 {
            panels::multiply_raw(&problem, operands)?;
        }
        // Where rows are pushed, who has none says nothing.
        let speaks = |peer: usize| pushed == 0 || !product.shards[peer].is_empty();
        let mut open = Vec::new();
        for peer in peers().filter(|&peer| speaks(peer)) {
            if expect_signal(&product.pad, product.ready, peer, 0) {
                open.push(peer);
                let rows = product.pushed_rows(peer);
                if !rows.is_empty() {
                    let (problem, operands) = product.part(&rows);
                    panels::multiply_raw(&problem, operands)?;
                }
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
                let to = product.row(rows.start).as_host();
                std::ptr::copy_nonoverlapping(from, to, rows.len() * product.row_bytes());
                let (problem, operands) = product.part(&rows);
                panels::multiply_raw(&problem, operands)?;
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
