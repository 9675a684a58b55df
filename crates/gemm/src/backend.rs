//! Products on a backend: planned once, launched many times.

use std::fmt::Debug;

use warpweave_symm_mem::{Backend, DevicePtr};

use crate::{Error, GemmProblem, Provider};

/// A backend that can multiply matrices.
///
/// Planning chooses an algorithm and allocates its workspace; launching does neither, waits for nothing and may be
/// captured in a graph. A plan owns its workspace: launches of one plan must be ordered by streams or events, as launches
/// that write the same C must be anyway.
pub trait GemmBackend: Backend {
    /// What plans of one device share: library handles and the choices that tuning has made.
    type GemmHandle: Debug + Send + Sync;
    /// A problem with its algorithm and workspace.
    type GemmPlan: Debug + Send + Sync;

    /// Prepares the device for products. Libraries are looked for when a plan first needs them.
    fn gemm_handle(&self) -> Result<Self::GemmHandle, Error>;

    /// Plans `problem` with the choice that [`gemm_tune`](Self::gemm_tune) made for it on this handle, else with the
    /// provider's heuristic.
    fn gemm_plan(
        &self,
        handle: &Self::GemmHandle,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Self::GemmPlan, Error>;

    /// Times every candidate of `provider` on the device, in interleaved rounds, and returns a plan with the quickest,
    /// which later plans of the same problem take over. Waits for the stream.
    ///
    /// # Safety
    /// As [`gemm`](Self::gemm). C is overwritten.
    #[allow(clippy::too_many_arguments)]
    unsafe fn gemm_tune(
        &self,
        handle: &Self::GemmHandle,
        stream: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        a: DevicePtr,
        b: DevicePtr,
        c: DevicePtr,
    ) -> Result<Self::GemmPlan, Error>;

    /// Enqueues C = A·B on `stream`.
    ///
    /// To capture a plan in a graph, launch it once before: a provider may load its code at the first launch.
    ///
    /// # Safety
    /// - A, B and C hold [`GemmProblem::a_len`], [`GemmProblem::b_len`] and [`GemmProblem::c_len`] elements and stay
    ///   mapped until the product has ended; C overlaps neither A nor B.
    /// - No unordered work writes A or B, accesses C, or launches the same plan.
    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        plan: &Self::GemmPlan,
        a: DevicePtr,
        b: DevicePtr,
        c: DevicePtr,
    ) -> Result<(), Error>;

    /// The problem that a plan computes.
    fn gemm_problem(plan: &Self::GemmPlan) -> &GemmProblem;

    /// The algorithm that a plan has chosen, for tables and logs.
    fn gemm_algorithm(plan: &Self::GemmPlan) -> String;
}

/// The matrix products of one device: a backend with its handle.
#[derive(Debug)]
pub struct Gemm<B: GemmBackend> {
    backend: B,
    handle: B::GemmHandle,
}

impl<B: GemmBackend> Gemm<B> {
    /// Prepares `backend`'s device.
    pub fn new(backend: &B) -> Result<Self, Error> {
        Ok(Self {
            backend: backend.clone(),
            handle: backend.gemm_handle()?,
        })
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What its plans share; on a GPU the way to single algorithms, [`CudaGemm`](crate::cuda::CudaGemm).
    pub fn handle(&self) -> &B::GemmHandle {
        &self.handle
    }

    /// See [`GemmBackend::gemm_plan`].
    pub fn plan(&self, problem: &GemmProblem, provider: Provider) -> Result<B::GemmPlan, Error> {
        self.backend.gemm_plan(&self.handle, problem, provider)
    }

    /// See [`GemmBackend::gemm_tune`].
    ///
    /// # Safety
    /// As for [`GemmBackend::gemm_tune`].
    pub unsafe fn tune(
        &self,
        stream: &B::Stream,
        problem: &GemmProblem,
        provider: Provider,
        (a, b, c): (DevicePtr, DevicePtr, DevicePtr),
    ) -> Result<B::GemmPlan, Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            self.backend
                .gemm_tune(&self.handle, stream, problem, provider, a, b, c)
        }
    }

    /// See [`GemmBackend::gemm`].
    ///
    /// # Safety
    /// As for [`GemmBackend::gemm`].
    pub unsafe fn launch(
        &self,
        stream: &B::Stream,
        plan: &B::GemmPlan,
        (a, b, c): (DevicePtr, DevicePtr, DevicePtr),
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe { self.backend.gemm(stream, plan, a, b, c) }
    }
}
