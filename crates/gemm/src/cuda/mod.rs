//! GEMMs on a GPU: cuBLASLt, CUTLASS and the hand-written kernel as implementations of [`GemmBackend`].

mod chunked_matmul;
mod fused;
mod handle;
mod prepared;

use warpweave_symm_mem::Cuda;

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
        Ok(CudaGemm::default())
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
        let contenders = handle.contenders(self, problem, &choices)?;
        let winner = timing::fastest(self, stream, contenders.len(), |index| {
            // SAFETY: the caller vouches for the matrices; the contenders follow each other on one stream, so
            // that they can share C and the workspace.
            unsafe { self.gemm(stream, &contenders[index], operands) }
        })?;
        let choice = contenders[winner].choice();
        // The contenders share the largest workspace of all; the plan to keep gets one of its own size.
        drop(contenders);
        let prepared = handle.prepare(self, problem, choice)?;
        handle.remember(problem, provider, choice);
        tracing::debug!(algorithm = %prepared.algorithm(), "chosen");
        Ok(prepared)
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        prepared: &CudaPrepared,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        prepared::bind(self)?;
        // SAFETY: the caller vouches for the matrices; the device's context is current now.
        unsafe { prepared.launch(self, stream, operands) }
    }

    fn gemm_problem(prepared: &CudaPrepared) -> &GemmProblem {
        prepared.problem()
    }

    fn gemm_algorithm(prepared: &CudaPrepared) -> String {
        prepared.algorithm()
    }
}
