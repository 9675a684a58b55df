//! GEMMs on a backend: planned once, launched many times.

use std::fmt::Debug;

use warpweave_symm_mem::{Backend, DType, DevicePtr, Memory};

use crate::{Error, GemmProblem, Provider, Scaling};

const SCALES_OF_A: &str = "scales of A";

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
    /// The first scales of A and of B, f32; ignored by a problem without them.
    pub scales: [DevicePtr; 2],
}

impl GemmOperands {
    /// Operands without a bias and without scales.
    pub const fn new(a: DevicePtr, b: DevicePtr, c: DevicePtr) -> Self {
        Self {
            a,
            b,
            c,
            bias: DevicePtr::NULL,
            scales: [DevicePtr::NULL; 2],
        }
    }

    /// Adds the bias at `bias`.
    #[must_use]
    pub const fn with_bias(mut self, bias: DevicePtr) -> Self {
        self.bias = bias;
        self
    }

    /// Adds the scales of A and of B.
    #[must_use]
    pub const fn with_scales(mut self, scales: [DevicePtr; 2]) -> Self {
        self.scales = scales;
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
        let names = [SCALES_OF_A, "scales of B"];
        let scales = names
            .into_iter()
            .zip(self.scales)
            .filter(|_| problem.scaling != Scaling::None)
            .map(|(name, address)| (name, address, DType::F32));
        matrices.into_iter().chain(bias).chain(scales)
    }

    /// Checks that the operands of `problem` lie at multiples of `alignment` of their element type, in bytes.
    /// Scales of A are read one by one and may begin at any row.
    pub(crate) fn check(
        self,
        problem: &GemmProblem,
        alignment: impl Fn(DType) -> u64,
    ) -> Result<(), Error> {
        self.check_for(problem, alignment, DType::F32.size() as u64)
    }

    /// The same where scales of A must lie at multiples of `scale` bytes.
    pub(crate) fn check_for(
        self,
        problem: &GemmProblem,
        alignment: impl Fn(DType) -> u64,
        scale: u64,
    ) -> Result<(), Error> {
        for (operand, address, dtype) in self.used_by(problem) {
            let alignment = match operand {
                SCALES_OF_A => scale,
                _ => alignment(dtype),
            };
            check_address(problem, (operand, None), address, alignment)?;
        }
        Ok(())
    }
}

/// Checks that an operand, of one of the ranks if each has one, lies at a multiple of `alignment` bytes.
pub(crate) fn check_address(
    problem: &GemmProblem,
    (operand, rank): (&'static str, Option<usize>),
    address: DevicePtr,
    alignment: u64,
) -> Result<(), Error> {
    if address.0 != 0 && address.0.is_multiple_of(alignment) {
        return Ok(());
    }
    let of = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    Err(Error::Operand {
        operand,
        problem: Box::new(*problem),
        reason: format!(
            "address {:#x}{of} must be a multiple of {alignment} bytes and not null",
            address.0
        ),
    })
}

/// A backend that can multiply matrices.
///
/// Preparing chooses an algorithm; launching does not, allocates nothing, waits for nothing and may be
/// captured in a graph. Neither a prepared GEMM nor its handle holds a workspace: a launch is given one, of
/// [`workspace_bytes`](Self::workspace_bytes). Launches that are not ordered need workspaces of their own.
pub trait GemmBackend: Backend {
    /// What prepared GEMMs of one device share: library handles, memory for tables, and the choices that
    /// tuning has made.
    type GemmHandle: Debug + Send + Sync;
    /// A problem with its algorithm.
    type PreparedGemm: Debug + Send + Sync;

    /// Prepares the device for GEMMs. Libraries are looked for when a GEMM first needs them.
    fn gemm_handle(&self) -> Result<Self::GemmHandle, Error>;

    /// Prepares `problem` with the choice that [`gemm_tune`](Self::gemm_tune) made for it on this handle,
    /// else with the provider's heuristic. Allocates no device memory.
    fn prepare_gemm(
        &self,
        handle: &Self::GemmHandle,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Self::PreparedGemm, Error>;

    /// Times every candidate of `provider` on the device, in interleaved rounds, and prepares the fastest,
    /// which later calls of [`prepare_gemm`](Self::prepare_gemm) take over. Allocates a workspace meanwhile,
    /// and waits for the stream.
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

    /// Bytes of workspace that a launch needs, at a multiple of 256.
    fn workspace_bytes(prepared: &Self::PreparedGemm) -> usize;

    /// Enqueues C = A·B, with the bias if the problem has one, on `stream`, with scratch memory at
    /// `workspace`, which is ignored, and may be null, where none is needed. Operands and workspace may
    /// differ between the launches of one prepared GEMM: on a GPU the tensor maps of the last 256 different
    /// ones are kept, and others are encoded.
    ///
    /// To capture a launch in a graph, launch the prepared GEMM once before: a provider may load its code at
    /// the first launch.
    ///
    /// # Errors
    /// [`Error::Operand`] for a missing or misaligned address; those of launching.
    ///
    /// # Safety
    /// - A, B, C and the bias hold [`GemmProblem::a_len`], [`GemmProblem::b_len`], [`GemmProblem::c_len`] and
    ///   [`GemmProblem::bias_len`] elements, and `workspace` [`workspace_bytes`](Self::workspace_bytes)
    ///   bytes. All stay mapped until the GEMM has ended; C and the workspace overlap none of the others.
    /// - No unordered work writes A, B or the bias, or accesses C or the workspace.
    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        prepared: &Self::PreparedGemm,
        operands: GemmOperands,
        workspace: DevicePtr,
    ) -> Result<(), Error>;

    /// The problem that a prepared GEMM computes.
    fn gemm_problem(prepared: &Self::PreparedGemm) -> &GemmProblem;

    /// The algorithm that was chosen, for tables and logs.
    fn gemm_algorithm(prepared: &Self::PreparedGemm) -> String;
}

/// A prepared GEMM with a workspace of its own: its launches must be ordered by streams or events, as
/// launches that write the same C must be anyway.
#[derive(Debug)]
pub struct PreparedGemm<B: GemmBackend> {
    prepared: B::PreparedGemm,
    workspace: Option<B::Memory>,
}

impl<B: GemmBackend> PreparedGemm<B> {
    /// Allocates the workspace of a prepared GEMM.
    ///
    /// # Errors
    /// Those of allocating.
    pub fn new(backend: &B, prepared: B::PreparedGemm) -> Result<Self, Error> {
        let workspace = match B::workspace_bytes(&prepared) {
            0 => None,
            bytes => Some(backend.allocate(bytes)?),
        };
        Ok(Self {
            prepared,
            workspace,
        })
    }

    /// Without the workspace.
    pub fn prepared(&self) -> &B::PreparedGemm {
        &self.prepared
    }

    /// Address of the workspace; null where none is needed.
    pub fn workspace(&self) -> DevicePtr {
        self.workspace
            .as_ref()
            .map_or(DevicePtr::NULL, Memory::address)
    }

    /// The problem that it computes.
    pub fn problem(&self) -> &GemmProblem {
        B::gemm_problem(&self.prepared)
    }

    /// The algorithm that was chosen, for tables and logs.
    pub fn algorithm(&self) -> String {
        B::gemm_algorithm(&self.prepared)
    }
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

    /// What its prepared GEMMs share; on a GPU the way to single algorithms,
    /// [`CudaGemm`](crate::cuda::CudaGemm).
    pub fn handle(&self) -> &B::GemmHandle {
        &self.handle
    }

    /// See [`GemmBackend::prepare_gemm`]. Allocates the workspace.
    pub fn prepare(
        &self,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<PreparedGemm<B>, Error> {
        let prepared = self.backend.prepare_gemm(&self.handle, problem, provider)?;
        PreparedGemm::new(&self.backend, prepared)
    }

    /// See [`GemmBackend::gemm_tune`]. Allocates the workspace.
    ///
    /// # Safety
    /// As for [`GemmBackend::gemm_tune`].
    pub unsafe fn tune(
        &self,
        stream: &B::Stream,
        problem: &GemmProblem,
        provider: Provider,
        operands: GemmOperands,
    ) -> Result<PreparedGemm<B>, Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        let prepared = unsafe {
            self.backend
                .gemm_tune(&self.handle, stream, problem, provider, operands)?
        };
        PreparedGemm::new(&self.backend, prepared)
    }

    /// See [`GemmBackend::gemm`].
    ///
    /// # Safety
    /// As for [`GemmBackend::gemm`]. No unordered work launches the same prepared GEMM, whose workspace it
    /// uses, and it lives until the GEMM has ended.
    pub unsafe fn launch(
        &self,
        stream: &B::Stream,
        gemm: &PreparedGemm<B>,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        let workspace = gemm.workspace();
        // SAFETY: the caller gives the guarantees that this method asks for; the workspace has the size that
        // is asked for.
        unsafe {
            self.backend
                .gemm(stream, &gemm.prepared, operands, workspace)
        }
    }
}
