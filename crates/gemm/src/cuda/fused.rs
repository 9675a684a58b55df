//! The hand-written fused GEMMs on a GPU: all-gather + GEMM, GEMM + reduction.

use warpweave_symm_mem::Cuda;

use super::CudaGemm;
use super::prepared::bind;
use crate::matmul_reduce::ReduceOutput;
use crate::sm90::{PreparedAllGather, PreparedOneShot, PreparedReduction};
use crate::{
    AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, Error, GemmReduceBackend,
    MatmulReduce, ReduceOperands,
};

impl AllGatherGemmBackend for Cuda {
    type PreparedAllGather = PreparedAllGather;

    fn prepare_all_gather(
        &self,
        handle: &CudaGemm,
        gemm: &AllGatherMatmul,
    ) -> Result<PreparedAllGather, Error> {
        gemm.validate()?;
        PreparedAllGather::new(self, handle.tables(), gemm)
    }

    fn all_gather_algorithm(prepared: &PreparedAllGather) -> String {
        format!("sm90 {}", prepared.tiling())
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        prepared: &PreparedAllGather,
        operands: &AllGatherOperands,
    ) -> Result<(), Error> {
        bind(self)?;
        // SAFETY: the caller's obligation.
        unsafe { prepared.launch(self, stream, operands) }
    }
}

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
            _ => CudaPreparedReduce::ByOwners(PreparedReduction::new(self, handle.tables(), gemm)?),
        })
    }

    unsafe fn matmul_reduce(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPreparedReduce,
        operands: &ReduceOperands,
    ) -> Result<(), Error> {
        bind(self)?;
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            match prepared {
                CudaPreparedReduce::ByOwners(prepared) => prepared.launch(self, stream, operands),
                CudaPreparedReduce::OneShot(prepared) => prepared.launch(self, stream, operands),
            }
        }
    }
}
