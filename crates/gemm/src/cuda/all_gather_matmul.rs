//! GEMMs that gather on a GPU: the hand-written kernel.

use warpweave_symm_mem::Cuda;

use super::{CudaGemm, handle};
use crate::sm90::PreparedAllGather;
use crate::{AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, Error};

impl AllGatherGemmBackend for Cuda {
    type PreparedAllGather = PreparedAllGather;

    fn prepare_all_gather(
        &self,
        handle: &CudaGemm,
        gemm: &AllGatherMatmul,
    ) -> Result<PreparedAllGather, Error> {
        gemm.validate()?;
        PreparedAllGather::new(self, handle, gemm)
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
        handle::bind(self)?;
        // SAFETY: the caller's obligation.
        unsafe { prepared.launch(self, stream, operands) }
    }
}
