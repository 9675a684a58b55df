//! The hand-written fused GEMMs on a GPU: all-gather + GEMM, GEMM + reduction.

use warpweave_symm_mem::Cuda;

use super::prepared::bind;
use crate::matmul_reduce::ReduceOutput;
use crate::sm90::{PreparedAllGather, PreparedOneShot, PreparedReduction};
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, GemmReduceBackend, MatmulReduce};

impl AllGatherGemmBackend for Cuda {
    type PreparedAllGather = PreparedAllGather;

    fn prepare_all_gather(&self, gemm: &AllGatherMatmul) -> Result<PreparedAllGather, Error> {
        gemm.validate()?;
        PreparedAllGather::new(self, gemm)
    }

    fn all_gather_algorithm(prepared: &PreparedAllGather) -> String {
        format!("sm90 {}", prepared.tiling())
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &PreparedAllGather,
    ) -> Result<(), Error> {
        bind(self)?;
        // SAFETY: the caller's obligation.
        unsafe { prepared.launch(self, stream) }
    }
}

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
