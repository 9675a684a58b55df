//! GEMMs on a GPU: cuBLASLt, CUTLASS and the hand-written kernel as implementations of [`GemmBackend`].

mod chunked_matmul;
mod fused;
mod handle;
mod prepared;

use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Memory};

pub use chunked_matmul::CudaPreparedChunked;
pub use fused::CudaPreparedReduce;
pub use handle::CudaGemm;
pub use prepared::{Choice, CudaPrepared};

use crate::backend::{GemmBackend, GemmOperands};
use crate::timing;
use crate::{Error, GemmProblem, Provider};

impl GemmBackend for Cuda {
    type GemmHandle = CudaGemm;
    type PreparedGemm = CudaPrepared;

    fn gemm_handle(&self) -> Result<CudaGemm, Error> {
        CudaGemm::new(self)
    }

    fn prepare_gemm(
        &self,
        handle: &CudaGemm,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<CudaPrepared, Error> {
        let choice = match handle.tuned(problem, provider) {
            Some(choice) => choice,
            None => handle.heuristic(self, problem, provider)?,
        };
        handle.prepare(self, problem, choice)
    }

    unsafe fn gemm_tune(
        &self,
        handle: &CudaGemm,
        stream: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        operands: GemmOperands,
    ) -> Result<CudaPrepared, Error> {
        let _span = tracing::debug_span!("gemm.tune", %problem, %provider).entered();
        let choices = handle.choices(self, problem, provider)?;
        let mut contenders = handle.contenders(self, problem, &choices)?;
        let bytes = contenders.iter().map(CudaPrepared::workspace_bytes).max();
        let workspace = match bytes.unwrap_or(0) {
            0 => None,
            bytes => Some(self.allocate(bytes)?),
        };
        let scratch = workspace
            .as_ref()
            .map_or(DevicePtr::NULL, |memory| memory.address());
        let winner = timing::fastest(self, stream, contenders.len(), |index| {
            // SAFETY: the caller vouches for the matrices; the contenders follow each other on one stream, so
            // that they can share C and the workspace, which has the size of the largest.
            unsafe { self.gemm(stream, &contenders[index], operands, scratch) }
        })?;
        let prepared = contenders.swap_remove(winner);
        handle.remember(problem, provider, prepared.choice());
        tracing::debug!(algorithm = %prepared.algorithm(), "chosen");
        Ok(prepared)
    }

    fn workspace_bytes(prepared: &CudaPrepared) -> usize {
        prepared.workspace_bytes()
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPrepared,
        operands: GemmOperands,
        workspace: DevicePtr,
    ) -> Result<(), Error> {
        prepared::bind(self)?;
        // SAFETY: the caller vouches for the matrices and the workspace; the device's context is current now.
        unsafe { prepared.launch(self, stream, operands, workspace) }
    }

    fn gemm_problem(prepared: &CudaPrepared) -> &GemmProblem {
        prepared.problem()
    }

    fn gemm_algorithm(prepared: &CudaPrepared) -> String {
        prepared.algorithm()
    }
}
