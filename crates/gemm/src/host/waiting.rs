//! The host twin of the product that waits: part after part, each behind its word.

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::expect_signal;

use super::panels;
use crate::{Error, GemmOperands, WaitingGemmBackend, WaitingMatmul};

impl WaitingGemmBackend for Host {
    type WaitingPlan = WaitingMatmul;

    fn waiting_plan(&self, product: &WaitingMatmul) -> Result<WaitingMatmul, Error> {
        product.validate()?;
        let operands = GemmOperands::new(product.a, product.b, product.c);
        panels::check_addresses(&product.problem, operands)?;
        if !product.arrivals.is_empty() {
            let a = product.staging;
            panels::check_addresses(&product.problem, GemmOperands { a, ..operands })?;
        }
        Ok(product.clone())
    }

    unsafe fn waiting_matmul(
        &self,
        stream: &Self::Stream,
        plan: &WaitingMatmul,
    ) -> Result<(), Error> {
        let product = plan.clone();
        self.launch(stream, WaitingMatmul::NAME, move || {
            // SAFETY: the obligations of `multiply` are those of this method, kept until the work has ended.
            let done = unsafe { multiply(&product) };
            done.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }
}

/// # Safety
/// As for [`WaitingGemmBackend::waiting_matmul`].
unsafe fn multiply(product: &WaitingMatmul) -> Result<(), Error> {
    let own = (!product.own.is_empty()).then_some((&product.own, None));
    let arrivals = product
        .arrivals
        .iter()
        .map(|part| (&part.rows, Some(part.from)));
    for (rows, from) in own.into_iter().chain(arrivals) {
        let (problem, a, c) = product.part(rows, from.is_none());
        // SAFETY: the slot and the source were checked; a part is read behind the word that announces it. Every wait runs,
        // whatever the others saw: each advances its own epoch.
        unsafe {
            if from.is_none_or(|from| expect_signal(&product.pad, product.ready, from, 0)) {
                panels::multiply_raw(&problem, GemmOperands::new(a, product.b, c))?;
            }
        }
    }
    Ok(())
}
