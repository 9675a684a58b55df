//! The host twin of the GEMM that waits per chunk: chunk by chunk, each after its flag.

use std::sync::Arc;

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::expect_signal;

use super::{enqueue, panels};
use crate::chunked_matmul::{ChunkedOperands, Launch};
use crate::{ChunkedGemmBackend, ChunkedMatmul, Error, GemmOperands};

impl ChunkedGemmBackend for Host {
    type PreparedChunked = Arc<ChunkedMatmul>;

    fn prepare_chunked(&self, _: &(), gemm: &ChunkedMatmul) -> Result<Arc<ChunkedMatmul>, Error> {
        gemm.validate()?;
        Ok(Arc::new(gemm.clone()))
    }

    unsafe fn chunked_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &Arc<ChunkedMatmul>,
        operands: &ChunkedOperands,
    ) -> Result<(), Error> {
        let gemm = &**prepared;
        Launch { gemm, operands }.check(panels::alignment)?;
        let call = (prepared, *operands);
        enqueue(self, stream, ChunkedMatmul::NAME, call, |launch| {
            // SAFETY: the obligations of `multiply` are those of this method, kept until the work has ended.
            unsafe { multiply(launch) }
        })
    }
}

/// # Safety
/// As for [`ChunkedGemmBackend::chunked_matmul`].
unsafe fn multiply(gemm: Launch<'_>) -> Result<(), Error> {
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
            if from.is_none_or(|from| expect_signal(&gemm.operands.pad, gemm.ready, from, 0)) {
                panels::multiply_raw(&problem, GemmOperands::new(a, gemm.operands.b, c))?;
            }
        }
    }
    Ok(())
}
