//! GEMM + reduction on a GPU: the hand-written kernels.

use warpweave_symm_mem::Cuda;

use crate::matmul_reduce::ReduceOutput;
use crate::sm90::{PreparedOneShot, PreparedReduction};
use crate::{Error, GemmReduceBackend, MatmulReduce};

/// A plan of either kernel.
#[derive(Debug)]
pub enum CudaPreparedReduce {
    /// Owners reduce.
    ByOwners(PreparedReduction),
    /// Each rank reduces everything.
    OneShot(PreparedOneShot),
}

impl GemmReduceBackend for Cuda {
    type PreparedReduce = CudaPreparedReduce;

    fn prepare_reduce(&self, gemm: &MatmulReduce) -> Result<CudaPreparedReduce, Error> {
        Ok(match gemm.c {
            ReduceOutput::Each(_) => CudaPreparedReduce::OneShot(PreparedOneShot::new(self, gemm)?),
            _ => CudaPreparedReduce::ByOwners(PreparedReduction::new(self, gemm)?),
        })
    }

    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPreparedReduce,
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            match prepared {
                CudaPreparedReduce::ByOwners(prepared) => prepared.launch(self, stream),
                CudaPreparedReduce::OneShot(prepared) => prepared.launch(self, stream),
            }
        }
    }
}
