//! A problem in cuBLASLt's terms: its descriptors, its candidates and its launch.
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
use super::library::{HeuristicResult, Library};
use super::preference::Preference;
use crate::{Error, GemmBatch, GemmOperands, GemmProblem, Layout, Provider};

/// Workspace offered to the heuristics, in bytes: beyond 32 MiB no further algorithm is known to appear on
/// Hopper.
pub const WORKSPACE_LIMIT: usize = 64 << 20;

/// Rows of the problem that a batch-invariant algorithm is proposed for: between those of decoding and of
/// long prompts.
pub const CANONICAL_ROWS: usize = 256;

/// A cuBLASLt context of the CUDA context that was current when it was made. Any thread may use it.
#[derive(Debug)]
pub struct Handle {
    library: Arc<Library>,
    raw: sys::cublasLtHandle_t,
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
    raw: sys::cublasLtMatmulAlgo_t,
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
    handle: Arc<Handle>,
    problem: GemmProblem,
    operation: sys::cublasLtMatmulDesc_t,
    /// The bias that `operation` points to. cuBLASLt has no place for it but the descriptor, so that whoever
    /// needs a bias sets it and calls cuBLASLt under this lock; a launch has copied the address, into a graph
    /// too, when it returns.
    bias: Mutex<u64>,
    // In cuBLASLt's order: its A is our B.
    first: sys::cublasLtMatrixLayout_t,
    second: sys::cublasLtMatrixLayout_t,
    output: sys::cublasLtMatrixLayout_t,
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
    fn with_bias(&self, bias: u64, call: impl FnOnce() -> u32) -> Result<u32, Error> {
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

    /// Up to `count` algorithms that need at most `workspace` bytes, best estimate first; never empty.
    ///
    /// Algorithms that split K and add the parts in the output's type are left out: they round more than
    /// once.
    ///
    /// `alignment`, a power of two, is what the addresses of all operands, the bias too, will be multiples
    /// of, in bytes; those of whole elements they are anyway.
    pub fn heuristics(
        &self,
        count: usize,
        workspace: usize,
        alignment: u32,
    ) -> Result<Vec<Algorithm>, Error> {
        let scheme = sys::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        self.proposals(count, workspace, alignment, scheme)
    }

    /// The one algorithm for all problems that differ in m and batch alone, which adds up the terms of an
    /// element in one sequence: what the heuristics propose for [`CANONICAL_ROWS`] rows, if it serves this
    /// problem too. `cublasLt.h` says of `CUBLASLT_REDUCTION_SCHEME_NONE` that the dot product is performed
    /// in one sequence.
    ///
    /// `workspace` and `alignment` as for [`heuristics`](Self::heuristics).
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the choice would depend on m: if A is transposed, or if the matrices of a
    /// batch are less aligned than their rows; [`Error::NoAlgorithm`].
    pub fn batch_invariant(&self, workspace: usize, alignment: u32) -> Result<Algorithm, Error> {
        let problem = &self.problem;
        let unsupported = |requirement: &str| Error::Unsupported {
            provider: Provider::CublasLt,
            problem: Box::new(*problem),
            requirement: format!("{requirement}, or the algorithm would depend on m"),
        };
        if problem.a_layout != Layout::RowMajor {
            return Err(unsupported("A must be row-major"));
        }
        let rows = (problem.lda | problem.ldb) * problem.dtype.size();
        let rows = rows | (problem.ldc * problem.out.size()) | 16;
        if alignment != 1 << rows.trailing_zeros() {
            let why = "the strides of a batch must be aligned as the rows are";
            return Err(unsupported(why));
        }
        let canonical = GemmProblem {
            m: CANONICAL_ROWS,
            batch: GemmBatch::ONE,
            ..*problem
        };
        let scheme = sys::CUBLASLT_REDUCTION_SCHEME_NONE;
        let proposed = Matmul::new(&self.handle, &canonical)?
            .proposals(1, workspace, alignment, scheme)?
            .pop();
        let none = || Error::NoAlgorithm {
            problem: Box::new(*problem),
            workspace,
        };
        let algorithm = proposed.ok_or_else(none)?;
        let mut result = HeuristicResult::EMPTY;
        let bias = u64::from(alignment).max(problem.out.size() as u64);
        let status = self.with_bias(bias, || {
            // SAFETY: the descriptors live; the algorithm is readable, and `result` a place for one result.
            unsafe {
                (self.handle.library.functions.algorithm_check)(
                    self.handle.raw,
                    self.operation,
                    self.first,
                    self.second,
                    self.output,
                    self.output,
                    &algorithm.raw,
                    &mut result,
                )
            }
        })?;
        // Every other status says that the algorithm does not serve the problem.
        if status != 0 || result.workspace > workspace {
            return Err(none());
        }
        Ok(Algorithm {
            workspace: result.workspace,
            waves: result.waves,
            ..algorithm
        })
    }

    /// Up to `count` algorithms with one of the reduction schemes of the mask `schemes`; otherwise as
    /// [`heuristics`](Self::heuristics).
    fn proposals(
        &self,
        count: usize,
        workspace: usize,
        alignment: u32,
        schemes: u32,
    ) -> Result<Vec<Algorithm>, Error> {
        let preference = Preference::new(&self.handle.library)?;
        preference.set(
            sys::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            &(workspace as u64),
        )?;
        preference.set(sys::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes)?;
        for attribute in [
            sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            sys::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(attribute, &alignment)?;
        }
        let mut results = vec![HeuristicResult::EMPTY; count.clamp(1, 256)];
        let mut found = 0;
        // There is no preference for the bias: the heuristics take its alignment from the pointer, which they
        // do not follow (`cublasLt.h` at CUBLASLT_MATMUL_DESC_BIAS_POINTER). A power of two is an address
        // with just this alignment.
        let bias = u64::from(alignment).max(self.problem.out.size() as u64);
        let status = self.with_bias(bias, || {
            // SAFETY: the descriptors live, and `results` has room for as many results as are asked for.
            unsafe {
                (self.handle.library.functions.heuristic)(
                    self.handle.raw,
                    self.operation,
                    self.first,
                    self.second,
                    self.output,
                    self.output,
                    preference.raw,
                    results.len() as i32,
                    results.as_mut_ptr(),
                    &mut found,
                )
            }
        })?;
        const NOT_SUPPORTED: u32 = sys::CUBLAS_STATUS_NOT_SUPPORTED;
        if status != NOT_SUPPORTED {
            self.handle
                .library
                .check("cublasLtMatmulAlgoGetHeuristic", status)?;
        }
        let usable: Vec<Algorithm> = results
            .iter()
            .take(found.max(0) as usize)
            .filter(|result| result.state == 0 && result.workspace <= workspace)
            .enumerate()
            .map(|(rank, result)| Algorithm {
                raw: result.algorithm,
                workspace: result.workspace,
                waves: result.waves,
                rank,
            })
            .collect();
        if usable.is_empty() {
            return Err(Error::NoAlgorithm {
                problem: Box::new(self.problem),
                workspace,
            });
        }
        Ok(usable)
    }

    /// Enqueues the GEMM on `stream`, a `CUstream` of the handle's context. Any number of threads may launch
    /// at once, each with its own operands; those of a problem with a bias take turns for the length of the
    /// call.
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
