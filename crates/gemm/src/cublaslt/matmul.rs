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

use super::header as sys;
use super::layout::{data_type, layout, set_batch};
use super::library::Library;
use crate::{Error, GemmBatch, GemmOperands, GemmProblem, Layout};

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
    /// The bias that `operation` points to. cuBLASLt has no place for it but the descriptor, so that whoever
    /// needs a bias sets it and calls cuBLASLt under this lock; a launch has copied the address, into a graph
    /// too, when it returns.
    bias: Mutex<u64>,
    // In cuBLASLt's order: its A is our B.
    pub(super) first: sys::cublasLtMatrixLayout_t,
    pub(super) second: sys::cublasLtMatrixLayout_t,
    pub(super) output: sys::cublasLtMatrixLayout_t,
}

// SAFETY: cuBLASLt only reads the descriptors, and none is changed after construction but the bias of
// `operation`, which is written, and where there is a bias read, under the lock of `bias` alone.
unsafe impl Send for Matmul {}
// SAFETY: as above.
unsafe impl Sync for Matmul {}

impl Matmul {
    /// Describes `problem`: f32 accumulation, f32 GEMMs for f32 inputs (no TF32).
    pub fn new(handle: &Arc<Handle>, problem: &GemmProblem) -> Result<Self, Error> {
        problem.validate()?;
        // Dropped on an early return, which destroys what was made until then.
        let mut this = Self {
            handle: handle.clone(),
            problem: *problem,
            operation: std::ptr::null_mut(),
            bias: Mutex::new(0),
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

    /// Lets `call` use the operation while it points to `bias`, or at once if the problem has none.
    pub(super) fn with_bias(&self, bias: u64, call: impl FnOnce() -> u32) -> Result<u32, Error> {
        if !self.problem.bias {
            return Ok(call());
        }
        let mut current = self.bias.lock();
        if *current != bias {
            // SAFETY: the attribute is a pointer, of 64 bits on every platform of CUDA 12 and 13; with a
            // bias, the operation is used under this lock alone.
            unsafe { self.set(sys::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)? };
            *current = bias;
        }
        Ok(call())
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
        GemmOperands { a, b, c, bias }: GemmOperands,
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let (alpha, beta) = (1.0f32, 0.0f32);
        let status = self.with_bias(bias.0, || {
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
