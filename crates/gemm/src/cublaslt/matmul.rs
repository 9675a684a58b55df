//! A problem in cuBLASLt's terms: its descriptors and its launch.
//!
//! cuBLASLt thinks in columns. The row-major C = A·B is the column-major Cᵀ = Bᵀ·Aᵀ: the same memory, the
//! operands and the extents swapped, and a stored row is a column.
//!
//! So our bias, one element for each column of C, has one for each *row* of their D, which is what
//! `CUBLASLT_EPILOGUE_BIAS` adds: `cublasLt.h` asks at `CUBLASLT_MATMUL_DESC_BIAS_POINTER` for a vector as
//! long as D has rows, and adds it to every column; all GEMMs of a batch get the same one, as
//! `CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE` is 0 by default.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;
use warpweave_symm_mem::DevicePtr;

use super::header as sys;
use super::layout::{data_type, layout, set_batch};
use super::library::Library;
use crate::cutlass::unsupported;
use crate::{Activation, Error, GemmBatch, GemmOperands, GemmProblem, Layout, Provider, Scaling};

/// A cuBLASLt context of the CUDA context that was current when it was made. Any thread may use it.
#[derive(Debug)]
pub struct Handle {
    pub(super) library: Arc<Library>,
    pub(super) raw: sys::cublasLtHandle_t,
}

// SAFETY: NVIDIA documents the handle as usable from any number of threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Makes a handle for the current CUDA context.
    pub fn new(library: Arc<Library>) -> Result<Arc<Self>, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for one handle.
        let status = unsafe { (library.functions.create)(&mut raw) };
        library.check("cublasLtCreate", status)?;
        Ok(Arc::new(Self { library, raw }))
    }

    /// The library it comes from.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle was created by this library and nothing refers to it any more. A failure at
        // teardown, when the context may already be gone, leaves nothing to do.
        let status = unsafe { (self.library.functions.destroy)(self.raw) };
        if status != 0 {
            tracing::debug!(status, "cublasLtDestroy failed");
        }
    }
}

/// An algorithm that the heuristics proposed for one [`Matmul`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Algorithm {
    pub(super) raw: sys::cublasLtMatmulAlgo_t,
    /// Bytes of device workspace that it needs.
    pub workspace: usize,
    /// Waves of thread blocks on the device, as the heuristics estimate them.
    pub waves: f32,
    /// Its place in the heuristics' order, 0 is their favourite.
    pub rank: usize,
}

/// The descriptors of one problem.
#[derive(Debug)]
pub struct Matmul {
    pub(super) handle: Arc<Handle>,
    pub(super) problem: GemmProblem,
    pub(super) operation: sys::cublasLtMatmulDesc_t,
    /// The bias and the scales of their A and B that `operation` points to. cuBLASLt has no place for them
    /// but the descriptor, so that whoever needs them sets them and calls cuBLASLt under this lock; a launch
    /// has copied the addresses, into a graph too, when it returns.
    vectors: Mutex<[u64; 3]>,
    // In cuBLASLt's order: its A is our B.
    pub(super) first: sys::cublasLtMatrixLayout_t,
    pub(super) second: sys::cublasLtMatrixLayout_t,
    pub(super) output: sys::cublasLtMatrixLayout_t,
}

// SAFETY: cuBLASLt only reads the descriptors, and none is changed after construction but the vectors of
// `operation`, which are written, and where there are any read, under the lock of `vectors` alone.
unsafe impl Send for Matmul {}
// SAFETY: as above.
unsafe impl Sync for Matmul {}

/// The first version with scales by row and by block.
const SCALES_BY_ROW: usize = 120_900;

/// Whether cuBLASLt has algorithms for the extents of `problem`: of e4m3 operands n, k and the leading
/// dimensions are multiples of 16, and with scales by block m is one of 4. Other operands may have any.
///
/// # Errors
/// [`Error::Unsupported`], which says what to pad.
pub fn check_extents(problem: &GemmProblem) -> Result<(), Error> {
    let [of_m, of_others] = match problem.scaling {
        Scaling::None => [1, 1],
        Scaling::Tensor | Scaling::Row => [1, 16],
        Scaling::Block => [4, 16],
    };
    for (name, extent, multiple) in [
        ("m", problem.m, of_m),
        ("n", problem.n, of_others),
        ("k", problem.k, of_others),
        ("lda", problem.lda, of_others),
        ("ldb", problem.ldb, of_others),
    ] {
        if !extent.is_multiple_of(multiple) {
            let why = format!(
                "{name} = {extent} must be a multiple of {multiple} with e4m3{}: pad it, or take another \
                 provider",
                problem.scaling.suffix()
            );
            return unsupported(problem, Provider::CublasLt, why);
        }
    }
    Ok(())
}

impl Matmul {
    /// Describes `problem`: f32 accumulation, f32 GEMMs for f32 inputs (no TF32).
    pub fn new(handle: &Arc<Handle>, problem: &GemmProblem) -> Result<Self, Error> {
        problem.validate()?;
        let refuse = |why: String| unsupported(problem, Provider::CublasLt, why);
        if problem.activation != Activation::None {
            return refuse("there must be no activation".into());
        }
        if problem.scaling == Scaling::Block && problem.block_scales == Layout::RowMajor {
            return refuse("scales of A by block are stored transposed".into());
        }
        check_extents(problem)?;
        let version = handle.library.version();
        if matches!(problem.scaling, Scaling::Row | Scaling::Block) && version < SCALES_BY_ROW {
            return refuse(format!(
                "scales by row and by block need cuBLASLt of CUDA 12.9, and {} is of {}.{}; \
                 WARPWEAVE_CUBLASLT names another",
                handle.library.path().display(),
                version / 10_000,
                version / 100 % 100
            ));
        }
        // Dropped on an early return, which destroys what was made until then.
        let mut this = Self {
            handle: handle.clone(),
            problem: *problem,
            operation: std::ptr::null_mut(),
            vectors: Mutex::default(),
            first: std::ptr::null_mut(),
            second: std::ptr::null_mut(),
            output: std::ptr::null_mut(),
        };
        let library = &handle.library;
        let f = &library.functions;
        // SAFETY: `operation` is a place for one descriptor.
        let status = unsafe {
            (f.desc_create)(
                &mut this.operation,
                sys::CUBLAS_COMPUTE_32F,
                sys::CUDA_R_32F,
            )
        };
        library.check("cublasLtMatmulDescCreate", status)?;
        for (attribute, layout) in [
            (sys::CUBLASLT_MATMUL_DESC_TRANSA, problem.b_layout),
            (sys::CUBLASLT_MATMUL_DESC_TRANSB, problem.a_layout),
        ] {
            let operation: u32 = match layout {
                Layout::RowMajor => 0,   // CUBLAS_OP_N
                Layout::Transposed => 1, // CUBLAS_OP_T
            };
            // SAFETY: nobody else has the descriptor yet, and the attribute is a 32-bit enumeration.
            unsafe { this.set(attribute, &operation)? };
        }
        if problem.bias {
            let epilogue = sys::CUBLASLT_EPILOGUE_BIAS;
            // SAFETY: as above.
            unsafe { this.set(sys::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)? };
        }
        if problem.bias && problem.scaling != Scaling::None {
            let of_bias = data_type(problem.out);
            // SAFETY: as above.
            unsafe { this.set(sys::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &of_bias)? };
        }
        // One scale for all is what cuBLASLt takes a pointer for without a mode.
        let modes = match problem.scaling {
            Scaling::None | Scaling::Tensor => None,
            Scaling::Row => Some([sys::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; 2]),
            Scaling::Block => Some([
                sys::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                sys::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
            ]),
        };
        for (attribute, mode) in [
            sys::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
            sys::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
        ]
        .into_iter()
        .zip(modes.into_iter().flatten())
        {
            // SAFETY: as above.
            unsafe { this.set(attribute, &mode)? };
        }
        let input = data_type(problem.dtype);
        let GemmBatch {
            count,
            a_stride,
            b_stride,
            c_stride,
        } = problem.batch;
        for (place, data_type, stored, ld, stride) in [
            (
                &mut this.first,
                input,
                problem.b_layout.stored(problem.k, problem.n),
                problem.ldb,
                b_stride,
            ),
            (
                &mut this.second,
                input,
                problem.a_layout.stored(problem.m, problem.k),
                problem.lda,
                a_stride,
            ),
            (
                &mut this.output,
                data_type(problem.out),
                (problem.m, problem.n),
                problem.ldc,
                c_stride,
            ),
        ] {
            *place = layout(library, data_type, stored, ld)?;
            if count > 1 {
                set_batch(library, *place, count, stride)?;
            }
        }
        Ok(this)
    }

    /// Sets an attribute of the operation.
    ///
    /// # Safety
    /// The attribute has the type `T`, and nobody uses the operation meanwhile.
    unsafe fn set<T: Copy>(&self, attribute: u32, value: &T) -> Result<(), Error> {
        let library = &self.handle.library;
        // SAFETY: the descriptor lives, `value` is readable at its size, and the caller vouches for the rest.
        let status = unsafe {
            (library.functions.desc_set)(
                self.operation,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        library.check("cublasLtMatmulDescSetAttribute", status)
    }

    /// Lets `call` use the operation while it points to the bias and the scales of `operands`, or at once if
    /// the problem has neither.
    pub(super) fn with_vectors(
        &self,
        operands: &GemmOperands,
        call: impl FnOnce() -> u32,
    ) -> Result<u32, Error> {
        let (has_bias, has_scales) = (self.problem.bias, self.problem.scaling != Scaling::None);
        if !has_bias && !has_scales {
            return Ok(call());
        }
        let mut current = self.vectors.lock();
        // Their A is our B.
        let [of_a, of_b] = operands.scales;
        for (at, (attribute, vector, is_used)) in [
            (
                sys::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                operands.bias.0,
                has_bias,
            ),
            (
                sys::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                of_b.0,
                has_scales,
            ),
            (
                sys::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                of_a.0,
                has_scales,
            ),
        ]
        .into_iter()
        .enumerate()
        {
            if is_used && current[at] != vector {
                // SAFETY: the attribute is a pointer, of 64 bits on every platform of CUDA 12 and 13; with
                // vectors, the operation is used under this lock alone.
                unsafe { self.set(attribute, &vector)? };
                current[at] = vector;
            }
        }
        Ok(call())
    }

    /// As [`with_vectors`](Self::with_vectors), for calls that follow no address: at addresses that are
    /// multiples of `alignment`, a power of two, and of no more.
    pub(super) fn with_aligned_vectors(
        &self,
        alignment: u32,
        call: impl FnOnce() -> u32,
    ) -> Result<u32, Error> {
        let aligned = |size: usize| DevicePtr(u64::from(alignment).max(size as u64));
        let nothing = GemmOperands::new(DevicePtr::NULL, DevicePtr::NULL, DevicePtr::NULL);
        let operands = nothing
            .with_bias(aligned(self.problem.out.size()))
            .with_scales([aligned(size_of::<f32>()); 2]);
        self.with_vectors(&operands, call)
    }

    /// The problem described.
    pub fn problem(&self) -> &GemmProblem {
        &self.problem
    }

    /// Enqueues the GEMM on `stream`, a `CUstream` of the handle's context. Any number of threads may launch
    /// at once, each with its own operands; those of a problem with a bias wait for each other for the length
    /// of the call.
    ///
    /// # Safety
    /// - `operands` are device addresses of the problem's matrices, and bias if it has one, with the
    ///   alignment that was promised to the heuristics, and `workspace` of at least [`Algorithm::workspace`]
    ///   bytes aligned to 256 (or 0 where none is needed), all mapped until the GEMM has ended.
    /// - No unordered work conflicts with any of them; C overlaps none of the others.
    /// - `algorithm` was proposed for this problem, and the handle's context is current.
    pub unsafe fn launch(
        &self,
        algorithm: &Algorithm,
        operands: GemmOperands,
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let (alpha, beta) = (1.0f32, 0.0f32);
        let GemmOperands { a, b, c, .. } = operands;
        let status = self.with_vectors(&operands, || {
            // SAFETY: the scalars are read during the call, as the pointer mode is the default; the caller
            // vouches for the device ranges and the context.
            unsafe {
                (self.handle.library.functions.matmul)(
                    self.handle.raw,
                    self.operation,
                    (&raw const alpha).cast(),
                    b.0 as *const c_void,
                    self.first,
                    a.0 as *const c_void,
                    self.second,
                    (&raw const beta).cast(),
                    c.0 as *const c_void,
                    self.output,
                    c.0 as *mut c_void,
                    self.output,
                    &algorithm.raw,
                    workspace as *mut c_void,
                    algorithm.workspace,
                    stream,
                )
            }
        })?;
        self.handle.library.check("cublasLtMatmul", status)
    }
}

impl Drop for Matmul {
    fn drop(&mut self) {
        let f = &self.handle.library.functions;
        // SAFETY: each descriptor was created by this library or is null, and is not used again.
        unsafe {
            for layout in [self.first, self.second, self.output] {
                if !layout.is_null() {
                    (f.layout_destroy)(layout);
                }
            }
            if !self.operation.is_null() {
                (f.desc_destroy)(self.operation);
            }
        }
    }
}
