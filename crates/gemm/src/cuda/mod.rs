//! GEMMs on a GPU: cuBLASLt, CUTLASS and the hand-written kernel after [`GemmBackend`].

mod all_gather_matmul;
mod chunked_matmul;
mod handle;
mod matmul_reduce;
mod prepared;

use warpweave_symm_mem::{Backend, Cuda};

pub use chunked_matmul::CudaPreparedChunked;
pub use handle::{Choice, CudaGemm};
pub use matmul_reduce::CudaPreparedReduce;
pub use prepared::CudaPrepared;

use crate::backend::{GemmBackend, GemmOperands};
use crate::timing;
use crate::{Error, GemmProblem, Provider};

/// SMs that a launch leaves to others where it waits for signals of stream operations. Its blocks stay until all rows
/// are here and fill a SM, so that a signal or a wait, which is a kernel and which a peer's rows may hang on, would find
/// no place beside them.
const LEFT_TO_SIGNALS: u32 = 2;

/// SMs that such a launch has.
pub(crate) fn sms_left_by_signals(cuda: &Cuda) -> u32 {
    let all = cuda.device().sms;
    all.saturating_sub(LEFT_TO_SIGNALS).max(1)
}

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
            // SAFETY: the caller vouches for the matrices; the contenders follow each other on one stream, so that they
            // can share C and the workspace.
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
        handle::bind(self)?;
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
