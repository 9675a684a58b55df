//! Products on a GPU: cuBLASLt, CUTLASS and the hand-written kernel behind [`GemmBackend`].

mod all_gather_matmul;
mod handle;
mod plan;
mod reduction;
mod waiting;

use warpweave_symm_mem::{Backend, Cuda};

pub use handle::{Choice, CudaGemm};
pub use plan::CudaPlan;
pub use reduction::CudaReducingPlan;
pub use waiting::CudaWaitingPlan;

use crate::backend::{GemmBackend, GemmOperands};
use crate::timing;
use crate::{Error, GemmProblem, Provider};

/// Multiprocessors that a launch leaves to others where it waits for signals of stream operations. Its blocks stay until all rows
/// are here and fill a multiprocessor, so that a signal or a wait, which is a kernel and which a peer's rows may hang on, would find
/// no place beside them.
const LEFT_TO_SIGNALS: u32 = 2;

/// Multiprocessors that such a launch has.
pub(crate) fn multiprocessors_beside_signals(cuda: &Cuda) -> u32 {
    let all = cuda.device().sms;
    all.saturating_sub(LEFT_TO_SIGNALS).max(1)
}

impl GemmBackend for Cuda {
    type GemmHandle = CudaGemm;
    type GemmPlan = CudaPlan;

    fn gemm_handle(&self) -> Result<CudaGemm, Error> {
        Ok(CudaGemm::default())
    }

    fn gemm_plan(
        &self,
        handle: &CudaGemm,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<CudaPlan, Error> {
        let choice = match handle.tuned(problem, provider) {
            Some(choice) => choice,
            None => handle.heuristic(self, problem, provider)?,
        };
        handle.plan(self, problem, choice)
    }

    unsafe fn gemm_tune(
        &self,
        handle: &CudaGemm,
        stream: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        operands: GemmOperands,
    ) -> Result<CudaPlan, Error> {
        let _span = tracing::debug_span!("gemm.tune", %problem, %provider).entered();
        let choices = handle.choices(self, problem, provider)?;
        let contenders = handle.contenders(self, problem, &choices)?;
        let winner = timing::quickest(self, stream, contenders.len(), |index| {
            // SAFETY: the caller vouches for the matrices; the contenders follow each other on one stream, so that they
            // can share C and the workspace.
            unsafe { self.gemm(stream, &contenders[index], operands) }
        })?;
        let choice = contenders[winner].choice();
        // The contenders share the largest workspace of all; the plan to keep gets one of its own size.
        drop(contenders);
        let plan = handle.plan(self, problem, choice)?;
        handle.remember(problem, provider, choice);
        tracing::debug!(algorithm = %plan.algorithm(), "chosen");
        Ok(plan)
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        plan: &CudaPlan,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        handle::bind(self)?;
        // SAFETY: the caller vouches for the matrices; the device's context is current now.
        unsafe { plan.launch(self, stream, operands) }
    }

    fn gemm_problem(plan: &CudaPlan) -> &GemmProblem {
        plan.problem()
    }

    fn gemm_algorithm(plan: &CudaPlan) -> String {
        plan.algorithm()
    }
}
