//! The algorithms that cuBLASLt proposes for a problem, and what its heuristics are asked to respect.

use super::header as sys;
use super::library::{HeuristicResult, Library};
use super::matmul::{Algorithm, Matmul};
use crate::{Error, GemmBatch, GemmProblem, Layout, Provider};

/// Workspace offered to the heuristics, in bytes: beyond 32 MiB no further algorithm is known to appear on
/// Hopper.
pub const WORKSPACE_LIMIT: usize = 64 << 20;

/// Rows of the problem that a batch-invariant algorithm is proposed for: between those of decoding and of
/// long prompts.
pub const CANONICAL_ROWS: usize = 256;

impl Matmul {
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
        let status = self.with_aligned_vectors(alignment, || {
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
        // do not follow (`cublasLt.h` at CUBLASLT_MATMUL_DESC_BIAS_POINTER).
        let status = self.with_aligned_vectors(alignment, || {
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
}

/// A preference, destroyed when dropped.
struct Preference<'a> {
    library: &'a Library,
    raw: sys::cublasLtMatmulPreference_t,
}

impl<'a> Preference<'a> {
    fn new(library: &'a Library) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for one preference.
        let status = unsafe { (library.functions.preference_create)(&mut raw) };
        library.check("cublasLtMatmulPreferenceCreate", status)?;
        Ok(Self { library, raw })
    }

    fn set<T: Copy>(&self, attribute: u32, value: &T) -> Result<(), Error> {
        // SAFETY: the preference lives and `value` is readable at its size.
        let status = unsafe {
            (self.library.functions.preference_set)(
                self.raw,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        self.library
            .check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        // SAFETY: the preference was created by this library and is not used again.
        unsafe { (self.library.functions.preference_destroy)(self.raw) };
    }
}
