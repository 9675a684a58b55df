//! GEMMs on a backend: planned once, launched many times.

use std::fmt::Debug;

use warpweave_symm_mem::{Backend, DType, DevicePtr};

use crate::{Error, GemmProblem, Provider};

/// Where the operands of a GEMM lie. Those of a batch are the addresses of its first GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmOperands {
    /// The first element of A, of the problem's type for inputs.
    pub a: DevicePtr,
    /// The first element of B, of the problem's type for inputs.
    pub b: DevicePtr,
    /// The first element of C, of the problem's type for outputs.
    pub c: DevicePtr,
    /// The first element of the bias, of the problem's type for outputs; ignored by a problem without one.
    pub bias: DevicePtr,
}

impl GemmOperands {
    /// Operands without a bias.
    pub const fn new(a: DevicePtr, b: DevicePtr, c: DevicePtr) -> Self {
        Self {
            a,
            b,
            c,
            bias: DevicePtr::NULL,
        }
    }

    /// Adds the bias at `bias`.
    #[must_use]
    pub const fn with_bias(mut self, bias: DevicePtr) -> Self {
        self.bias = bias;
        self
    }

    /// The operands that `problem` uses, with their names and element types.
    pub(crate) fn used_by(
        self,
        problem: &GemmProblem,
    ) -> impl Iterator<Item = (&'static str, DevicePtr, DType)> {
        let matrices = [
            ("A", self.a, problem.dtype),
            ("B", self.b, problem.dtype),
            ("C", self.c, problem.out),
        ];
        let bias = problem.bias.then_some(("bias", self.bias, problem.out));
        matrices.into_iter().chain(bias)
    }

    /// Checks that the operands of `problem` lie at multiples of `alignment` of their element type, in bytes.
    pub(crate) fn check(
        self,
        problem: &GemmProblem,
        alignment: impl Fn(DType) -> u64,
    ) -> Result<(), Error> {
        for (operand, address, dtype) in self.used_by(problem) {
            let alignment = alignment(dtype);
            if address.0 == 0 || address.0 % alignment != 0 {
                return Err(Error::Operand {
                    operand,
                    problem: Box::new(*problem),
                    reason: format!(
                        "address {:#x} must be a multiple of {alignment} bytes and not null",
                        address.0
                    ),
                });
            }
        }
        Ok(())
    }
}

/// A backend that can multiply matrices.
///
/// Planning chooses an algorithm and allocates its workspace; launching does neither, waits for nothing and
/// may be captured in a graph. A plan owns its workspace: launches of one plan must be ordered by streams or
/// events, as launches that write the same C must be anyway.
pub trait GemmBackend: Backend {
    /// What plans of one device share: library handles and the choices that tuning has made.
    type GemmHandle: Debug + Send + Sync;
    /// A problem with its algorithm and workspace.
    type PreparedGemm: Debug + Send + Sync;

    /// Prepares the device for GEMMs. Libraries are looked for when a plan first needs them.
    fn gemm_handle(&self) -> Result<Self::GemmHandle, Error>;

    /// Plans `problem` with the choice that [`gemm_tune`](Self::gemm_tune) made for it on this handle, else
    /// with the provider's heuristic.
    fn prepare_gemm(
        &self,
        handle: &Self::GemmHandle,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Self::PreparedGemm, Error>;

    /// Times every candidate of `provider` on the device, in interleaved rounds, and returns a plan with the
    /// fastest, which later plans of the same problem take over. Waits for the stream.
    ///
    /// # Safety
    /// As [`gemm`](Self::gemm). C is overwritten.
    unsafe fn gemm_tune(
        &self,
        handle: &Self::GemmHandle,
        stream: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        operands: GemmOperands,
    ) -> Result<Self::PreparedGemm, Error>;

    /// Enqueues C = A·B, with the bias if the problem has one, on `stream`.
    ///
    /// To capture a plan in a graph, launch it once before: a provider may load its code at the first launch.
    ///
    /// # Safety
    /// - A, B, C and the bias hold [`GemmProblem::a_len`], [`GemmProblem::b_len`], [`GemmProblem::c_len`] and
    ///   [`GemmProblem::bias_len`] elements and stay mapped until the GEMM has ended; C overlaps none of the
    ///   others.
    /// - No unordered work writes A, B or the bias, accesses C, or launches the same plan.
    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedGemm,
        operands: GemmOperands,
    ) -> Result<(), Error>;

    /// The problem that a plan computes.
    fn gemm_problem(prepared: &Self::PreparedGemm) -> &GemmProblem;

    /// The algorithm that a plan has chosen, for tables and logs.
    fn gemm_algorithm(prepared: &Self::PreparedGemm) -> String;
}

/// The GEMMs of one device: a backend with its handle.
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

    /// See [`GemmBackend::prepare_gemm`].
    pub fn prepare(
        &self,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<B::PreparedGemm, Error> {
        self.backend.prepare_gemm(&self.handle, problem, provider)
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
        operands: GemmOperands,
    ) -> Result<B::PreparedGemm, Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            self.backend
                .gemm_tune(&self.handle, stream, problem, provider, operands)
        }
    }

    /// See [`GemmBackend::gemm`].
    ///
    /// # Safety
    /// As for [`GemmBackend::gemm`].
    pub unsafe fn launch(
        &self,
        stream: &B::Stream,
        prepared: &B::PreparedGemm,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe { self.backend.gemm(stream, prepared, operands) }
    }
}
