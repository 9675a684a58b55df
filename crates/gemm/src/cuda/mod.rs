//! Products on a GPU: cuBLASLt and CUTLASS behind [`GemmBackend`].

mod handle;
mod plan;

use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Memory};

pub use handle::CudaGemm;
pub use plan::CudaPlan;

use crate::backend::GemmBackend;
use crate::cublaslt::{Matmul, WORKSPACE_LIMIT};
use crate::cutlass;
use crate::timing;
use crate::{Error, GemmProblem, Provider};

use handle::Choice;

/// Algorithms asked of cuBLASLt's heuristics for tuning.
const TUNED_ALGORITHMS: usize = 32;

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
        problem.validate()?;
        let choice = match handle.tuned(problem, provider) {
            Some(choice) => choice,
            None => self.heuristic(handle, problem, provider)?,
        };
        self.plan_choice(handle, problem, choice)
    }

    unsafe fn gemm_tune(
        &self,
        handle: &CudaGemm,
        stream: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        a: DevicePtr,
        b: DevicePtr,
        c: DevicePtr,
    ) -> Result<CudaPlan, Error> {
        problem.validate()?;
        let _span = tracing::debug_span!("gemm.tune", %problem, %provider).entered();
        let choices = self.choices(handle, problem, provider)?;
        let mut plans = self.contenders(handle, problem, &choices)?;
        let winner = timing::quickest(self, stream, plans.len(), |index| {
            // SAFETY: the caller vouches for the matrices; the candidates follow each other on one stream, so that they
            // can share C and the workspace.
            unsafe { self.gemm(stream, &plans[index], a, b, c) }
        })?;
        let plan = plans.swap_remove(winner);
        tracing::debug!(algorithm = %Self::gemm_algorithm(&plan), "chosen");
        handle.remember(problem, provider, plan.choice());
        // A contender shares the largest workspace of all; the plan to keep gets one of its own size.
        self.plan_choice(handle, problem, plan.choice())
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        plan: &CudaPlan,
        a: DevicePtr,
        b: DevicePtr,
        c: DevicePtr,
    ) -> Result<(), Error> {
        self.bind()?;
        // SAFETY: the caller vouches for the matrices, and the device's context is current now.
        unsafe { plan.launch((a.0, b.0, c.0), stream.raw().cast()) }
    }

    fn gemm_problem(plan: &CudaPlan) -> &GemmProblem {
        plan.problem()
    }

    fn gemm_algorithm(plan: &CudaPlan) -> String {
        plan.algorithm()
    }
}

/// What the trait's methods are made of, and finer control: a [`Choice`] names one algorithm of one provider.
impl CudaGemm {
    /// Every algorithm that tuning would try for `problem`.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::MissingFeature`], [`Error::Unsupported`] or the errors of cuBLASLt.
    pub fn choices(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Vec<Choice>, Error> {
        backend.choices(self, problem, provider)
    }

    /// A plan that uses `choice`, which came from [`choices`](Self::choices) for the same problem.
    pub fn plan(&self, backend: &Cuda, problem: &GemmProblem, choice: Choice) -> Result<CudaPlan, Error> {
        backend.plan_choice(self, problem, choice)
    }
}

/// Implemented for the one type so that the steps read as methods of the device.
trait Steps {
    fn heuristic(&self, handle: &CudaGemm, problem: &GemmProblem, provider: Provider) -> Result<Choice, Error>;
    fn choices(&self, handle: &CudaGemm, problem: &GemmProblem, provider: Provider) -> Result<Vec<Choice>, Error>;
    fn plan_choice(&self, handle: &CudaGemm, problem: &GemmProblem, choice: Choice) -> Result<CudaPlan, Error>;
    fn contenders(&self, handle: &CudaGemm, problem: &GemmProblem, choices: &[Choice]) -> Result<Vec<CudaPlan>, Error>;
}
