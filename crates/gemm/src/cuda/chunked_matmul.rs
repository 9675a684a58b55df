//! GEMMs that wait on a GPU: a CUTLASS kernel with the tables of the GEMM.

use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Memory};

use super::prepared::{bind, ordinal, raw};
use crate::chunked_matmul::Table;
use crate::cutlass::{self, Arrivals};
use crate::sm90::sms_left_by_signals;
use crate::{ChunkedGemmBackend, ChunkedMatmul, Error, GemmOperands};

/// A GEMM that waits, with its tables in device memory.
#[derive(Debug)]
pub struct CudaPreparedChunked {
    kernel: cutlass::Prepared,
    operands: GemmOperands,
    /// Own rows that are copied to staging: destination, source, bytes.
    shared: Vec<(DevicePtr, DevicePtr, usize)>,
    /// What the kernel's arrivals point to.
    _table: <Cuda as Backend>::Memory,
}

impl ChunkedGemmBackend for Cuda {
    type PreparedChunked = CudaPreparedChunked;

    fn prepare_chunked(&self, gemm: &ChunkedMatmul) -> Result<CudaPreparedChunked, Error> {
        gemm.validate()?;
        let (problem, own) = (&gemm.problem, &gemm.own);
        cutlass::check_problem(problem)?;
        let configs = cutlass::chunked_configs()?;
        cutlass::check_device(self.device())?;
        bind(self)?;

        let sms = sms_left_by_signals(self.device());
        let tiling = cutlass::select(configs, problem, sms).ok_or(Error::NoCandidate)?;
        let table = Table::new(gemm, &configs[tiling.config])?;
        let (image, at) = table.image();
        let memory = self.allocate(image.len())?;
        let stream = self.setup_stream()?;
        // SAFETY: the memory has the image's size and is this plan's alone.
        unsafe { self.upload(&stream, memory.address(), &image)? };

        let row = problem.lda * problem.dtype.size();
        let staging = match gemm.arrivals.is_empty() {
            true => gemm.a,
            false => gemm.staging,
        };
        // Tensor maps of no rows do not exist; where there are no own rows, no tile reads them.
        let (first_row, own_end) = match own.is_empty() {
            true => (staging.0, problem.m),
            false => (gemm.a.0.wrapping_sub((own.start * row) as u64), own.end),
        };
        let arrivals = Arrivals {
            pad: gemm.pad,
            slot: gemm.ready,
            own: first_row,
            own_end,
            tables: [at.groups, at.tiles, at.waits, at.signals]
                .map(|part| memory.address().add(part).0),
        };
        let kernel =
            cutlass::Prepared::waiting(tiling.config, problem, ordinal(self), sms, &arrivals)?;
        let shared = table.shared(own).into_iter().map(|rows| {
            let src = gemm.a.add((rows.start - own.start) * row);
            let last = (rows.len() - 1) * row + problem.k * problem.dtype.size();
            (gemm.staging.add(rows.start * row), src, last)
        });
        Ok(CudaPreparedChunked {
            shared: shared.collect(),
            kernel,
            operands: GemmOperands::new(staging, gemm.b, gemm.c),
            _table: memory,
        })
    }

    unsafe fn chunked_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPreparedChunked,
    ) -> Result<(), Error> {
        for &(dst, src, bytes) in &prepared.shared {
            // SAFETY: the caller vouches for own rows, in `a` and in staging.
            unsafe { self.copy(stream, dst, src, bytes)? };
        }
        bind(self)?;
        // SAFETY: the caller vouches for the matrices and the pad; the tables live with the plan.
        unsafe { prepared.kernel.launch(prepared.operands, 0, raw(stream)) }
    }
}
