//! GEMMs that wait on a GPU: a CUTLASS kernel with the tables of the GEMM.

use std::ops::Range;

use warpweave_symm_mem::{Backend, Cuda};

use super::CudaGemm;
use super::prepared::{bind, ordinal, raw};
use crate::capture::Relaxed;
use crate::chunked_matmul::{ChunkedOperands, Launch};
use crate::cutlass::{self, ADDRESS_ALIGNMENT, Arrivals};
use crate::sm90::sms_left_by_signals;
use crate::tables::Table;
use crate::{ChunkedGemmBackend, ChunkedMatmul, Error, GemmOperands, chunked_matmul};

/// A GEMM that waits, with its tables in device memory.
#[derive(Debug)]
pub struct CudaPreparedChunked {
    gemm: ChunkedMatmul,
    kernel: cutlass::Prepared,
    /// Own rows that are copied to staging.
    shared: Vec<Range<usize>>,
    /// What the kernel's arrivals point to, and the place of each part.
    table: Table,
    offsets: [usize; 4],
}

impl ChunkedGemmBackend for Cuda {
    type PreparedChunked = CudaPreparedChunked;

    fn prepare_chunked(
        &self,
        handle: &CudaGemm,
        gemm: &ChunkedMatmul,
    ) -> Result<CudaPreparedChunked, Error> {
        gemm.validate()?;
        let problem = &gemm.problem;
        cutlass::check_problem(problem)?;
        let configs = cutlass::chunked_configs()?;
        cutlass::check_device(self.device())?;
        bind(self)?;
        let _relaxed = Relaxed::begin()?;

        let sms = sms_left_by_signals(self.device());
        let tiling = cutlass::select(configs, problem, sms).ok_or(Error::NoCandidate)?;
        let table = chunked_matmul::Table::new(gemm, &configs[tiling.config])?;
        let (image, at) = table.image();
        Ok(CudaPreparedChunked {
            kernel: cutlass::Prepared::waiting(tiling.config, problem, ordinal(self), sms)?,
            shared: table.shared(&gemm.own),
            table: handle.tables().upload_bytes(&image)?,
            offsets: [at.groups, at.tiles, at.waits, at.signals],
            gemm: gemm.clone(),
        })
    }

    unsafe fn chunked_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPreparedChunked,
        operands: &ChunkedOperands,
    ) -> Result<(), Error> {
        let gemm = &prepared.gemm;
        Launch { gemm, operands }.check(|_| ADDRESS_ALIGNMENT)?;
        let ChunkedOperands {
            a,
            staging,
            b,
            c,
            pad,
        } = *operands;
        let (problem, own) = (&gemm.problem, &gemm.own);
        let row = problem.lda * problem.dtype.size();
        for rows in &prepared.shared {
            let from = a.add((rows.start - own.start) * row);
            let bytes = (rows.len() - 1) * row + problem.k * problem.dtype.size();
            // SAFETY: the caller vouches for own rows, in `a` and in staging.
            unsafe { self.copy(stream, staging.add(rows.start * row), from, bytes)? };
        }
        let staging = match gemm.arrivals.is_empty() {
            true => a,
            false => staging,
        };
        // Tensor maps of no rows do not exist; where there are no own rows, no tile reads them.
        let (first_row, own_end) = match own.is_empty() {
            true => (staging.0, problem.m),
            false => (a.0.wrapping_sub((own.start * row) as u64), own.end),
        };
        let arrivals = Arrivals {
            pad,
            slot: gemm.ready,
            own: first_row,
            own_end,
            tables: prepared
                .offsets
                .map(|part| prepared.table.address().add(part).0),
        };
        let operands = GemmOperands::new(staging, b, c);
        bind(self)?;
        // SAFETY: the caller vouches for the matrices and the pad, and that the tables live until the GEMM
        // has ended.
        unsafe {
            prepared
                .kernel
                .launch_waiting(operands, &arrivals, raw(stream))
        }
    }
}
