//! The host twin of the GEMM that waits per chunk: chunk by chunk, each after its flag.

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::expect_signal;

use super::panels;
use crate::{ChunkedGemmBackend, ChunkedMatmul, Error, GemmOperands};

impl ChunkedGemmBackend for Host {
    type PreparedChunked = ChunkedMatmul;

    fn prepare_chunked(&self, gemm: &ChunkedMatmul) -> Result<ChunkedMatmul, Error> {
        gemm.validate()?;
        let operands = GemmOperands::new(gemm.a, gemm.b, gemm.c);
        panels::check_addresses(&gemm.problem, operands)?;
        if !gemm.arrivals.is_empty() {
            let a = gemm.staging;
            panels::check_addresses(&gemm.problem, GemmOperands { a, ..operands })?;
        }
        Ok(gemm.clone())
    }

    unsafe fn chunked_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &ChunkedMatmul,
    ) -> Result<(), Error> {
        let gemm = prepared.clone();
        self.launch(stream, ChunkedMatmul::NAME, move || {
            // SAFETY: the obligations of `multiply` are those of this method, kept until the work has ended.
            let done = unsafe { multiply(&gemm) };
            done.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }
}

/// # Safety
/// As for [`ChunkedGemmBackend::chunked_matmul`].
unsafe fn multiply(gemm: &ChunkedMatmul) -> Result<(), Error> {
    let own = (!gemm.own.is_empty()).then_some((&gemm.own, None));
    let arrivals = gemm
        .arrivals
        .iter()
        .map(|part| (&part.rows, Some(part.from)));
    for (rows, from) in own.into_iter().chain(arrivals) {
        let (problem, a, c) = gemm.part(rows, from.is_none());
        // SAFETY: the slot and the source were checked; a part is read after the flag that publishes it.
        // Every wait runs, whatever the others saw: each advances its own epoch.
        unsafe {
            if from.is_none_or(|from| expect_signal(&gemm.pad, gemm.ready, from, 0)) {
                panels::multiply_raw(&problem, GemmOperands::new(a, gemm.b, c))?;
            }
        }
    }
    Ok(())
}
