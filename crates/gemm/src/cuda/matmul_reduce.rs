//! GEMM + reduction on a GPU: the hand-written kernels.

use warpweave_symm_mem::Cuda;

use super::{CudaGemm, handle};
use crate::matmul_reduce::ReduceOutput;
use crate::sm90::{PreparedOneShot, PreparedReduction};
use crate::{Error, GemmReduceBackend, MatmulReduce, ReduceOperands};

/// A prepared launch of either kernel.
#[derive(Debug)]
pub enum CudaPreparedReduce {
    /// Owners reduce.
    ByOwners(PreparedReduction),
    /// Each rank reduces everything.
    OneShot(PreparedOneShot),
}

impl GemmReduceBackend for Cuda {
    type PreparedReduce = CudaPreparedReduce;

    fn prepare_reduce(
        &self,
        handle: &CudaGemm,
        gemm: &MatmulReduce,
    ) -> Result<CudaPreparedReduce, Error> {
        Ok(match gemm.c {
            ReduceOutput::Each => CudaPreparedReduce::OneShot(PreparedOneShot::new(self, gemm)?),
            _ => CudaPreparedReduce::ByOwners(PreparedReduction::new(self, handle, gemm)?),
        })
    }

    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPreparedReduce,
        operands: &ReduceOperands,
    ) -> Result<(), Error> {
        handle::bind(self)?;
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            match prepared {
                CudaPreparedReduce::ByOwners(prepared) => prepared.launch(self, stream, operands),
                CudaPreparedReduce::OneShot(prepared) => prepared.launch(self, stream, operands),
            }
        }
    }
}
