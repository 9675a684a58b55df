//! What the prepared GEMMs of one device share, and how they are made.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use warpweave_symm_mem::{Backend, Cuda};

use super::prepared::{Choice, CudaPrepared, Kernel, bind, ordinal};
use crate::capture::Relaxed;
use crate::cublaslt::{self, Library, Matmul, WORKSPACE_LIMIT};
use crate::cutlass;
use crate::sm90;
use crate::tables::Tables;
use crate::{Error, GemmBatch, GemmProblem, Provider};

/// Algorithms asked of cuBLASLt's heuristics for tuning.
const TUNED_ALGORITHMS: usize = 32;

/// What the prepared GEMMs of one device share: the cuBLASLt handle, made when first needed, the choices of
/// tuning, and memory for tables, of which 4 MiB are allocated ahead and more when these are full.
#[derive(Debug)]
pub struct CudaGemm {
    tables: Tables,
    cublaslt: Mutex<Option<Arc<cublaslt::Handle>>>,
    tuned: Mutex<HashMap<(GemmProblem, Provider), Choice>>,
}

impl CudaGemm {
    pub(super) fn new(backend: &Cuda) -> Result<Self, Error> {
        Ok(Self {
            tables: Tables::new(backend)?,
            cublaslt: Mutex::default(),
            tuned: Mutex::default(),
        })
    }

    /// Memory for the tables of prepared GEMMs.
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Every algorithm that tuning would try for `problem`, the provider's favourite first where it has one.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`], [`Error::Unsupported`], [`Error::Device`], [`Error::MissingFeature`] or
    /// those of cuBLASLt.
    pub fn choices(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Vec<Choice>, Error> {
        problem.validate()?;
        match provider {
            Provider::CublasLt => self.proposals(backend, problem, TUNED_ALGORITHMS),
            Provider::Cutlass => {
                let configs = cutlass_configs(backend, problem)?;
                Ok(cutlass::tilings(configs, problem)
                    .into_iter()
                    .map(Choice::Cutlass)
                    .collect())
            }
            Provider::Sm90 => {
                sm90::check_device(backend.device())?;
                sm90::check_problem(problem)?;
                let sms = backend.device().sms;
                let tilings = sm90::tilings(problem, sms);
                Ok(tilings.into_iter().map(Choice::Sm90).collect())
            }
            Provider::Host => Err(Error::WrongBackend {
                provider,
                backend: "CUDA",
            }),
        }
    }

    /// The choice to make without measuring.
    pub(super) fn heuristic(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        provider: Provider,
    ) -> Result<Choice, Error> {
        problem.validate()?;
        match provider {
            Provider::CublasLt => {
                let proposals = self.proposals(backend, problem, 1)?;
                proposals.first().copied().ok_or(Error::NoCandidate)
            }
            Provider::Cutlass => {
                let configs = cutlass_configs(backend, problem)?;
                let sms = backend.device().sms;
                cutlass::select(configs, problem, sms)
                    .map(Choice::Cutlass)
                    .ok_or(Error::NoCandidate)
            }
            Provider::Sm90 => {
                sm90::check_device(backend.device())?;
                sm90::check_problem(problem)?;
                sm90::select(problem, backend.device().sms)
                    .map(Choice::Sm90)
                    .ok_or(Error::NoCandidate)
            }
            Provider::Host => Err(Error::WrongBackend {
                provider,
                backend: "CUDA",
            }),
        }
    }

    /// `problem` prepared with `choice`, which came from [`choices`](Self::choices) for the same problem.
    ///
    /// # Errors
    /// As [`choices`](Self::choices).
    pub fn prepare(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        choice: Choice,
    ) -> Result<CudaPrepared, Error> {
        let mut prepared = self.contenders(backend, problem, &[choice])?;
        prepared.pop().ok_or(Error::NoCandidate)
    }

    /// `problem` prepared with each of `choices` with which it can be.
    ///
    /// # Errors
    /// The first choice's error if there is none.
    pub fn contenders(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        choices: &[Choice],
    ) -> Result<Vec<CudaPrepared>, Error> {
        problem.validate()?;
        bind(backend)?;
        let _relaxed = Relaxed::begin()?;
        let mut prepared = Vec::new();
        let mut failure = None;
        let mut matmul = None;
        for &choice in choices {
            match self.kernel(backend, problem, choice, &mut matmul) {
                Ok(kernel) => prepared.push(CudaPrepared::new(*problem, kernel)),
                Err(error) => {
                    tracing::debug!(?choice, %error, "left out");
                    failure = failure.or(Some(error));
                }
            }
        }
        if prepared.is_empty() {
            return Err(failure.unwrap_or(Error::NoCandidate));
        }
        Ok(prepared)
    }

    pub(super) fn tuned(&self, problem: &GemmProblem, provider: Provider) -> Option<Choice> {
        self.tuned.lock().get(&(*problem, provider)).copied()
    }

    pub(super) fn remember(&self, problem: &GemmProblem, provider: Provider, choice: Choice) {
        self.tuned.lock().insert((*problem, provider), choice);
    }

    fn kernel(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        choice: Choice,
        matmul: &mut Option<Arc<Matmul>>,
    ) -> Result<Kernel, Error> {
        match choice {
            Choice::CublasLt(algorithm) => {
                let matmul = match matmul {
                    Some(matmul) => matmul.clone(),
                    None => matmul
                        .insert(Arc::new(Matmul::new(&self.cublaslt(backend)?, problem)?))
                        .clone(),
                };
                Ok(Kernel::CublasLt {
                    matmul,
                    algorithm,
                    alignment: alignment(problem),
                })
            }
            Choice::Cutlass(tiling) => {
                let configs = cutlass_configs(backend, problem)?;
                let config = configs.get(tiling.config);
                if let Some(config) = config.filter(|config| !config.serves(problem)) {
                    let why = format!("{} is not batch-invariant: it splits K by m", config.name);
                    return cutlass::unsupported(problem, Provider::Cutlass, why);
                }
                let prepared = cutlass::Prepared::new(
                    tiling,
                    problem,
                    ordinal(backend),
                    backend.device().sms,
                )?;
                Ok(Kernel::Cutlass { prepared, tiling })
            }
            Choice::Sm90(sm90::FEW_ROWS_TILING) => {
                let prepared = sm90::PreparedFewRows::new(backend, problem)?;
                Ok(Kernel::FewRows(Box::new(prepared)))
            }
            Choice::Sm90(tiling) => {
                let prepared = sm90::Prepared::new(backend, tiling, problem)?;
                Ok(Kernel::Sm90(Box::new(prepared)))
            }
        }
    }

    fn proposals(
        &self,
        backend: &Cuda,
        problem: &GemmProblem,
        count: usize,
    ) -> Result<Vec<Choice>, Error> {
        let matmul = Matmul::new(&self.cublaslt(backend)?, problem)?;
        let algorithms = match problem.batch_invariant {
            true => vec![matmul.batch_invariant(WORKSPACE_LIMIT, alignment(problem))?],
            false => matmul.heuristics(count, WORKSPACE_LIMIT, alignment(problem))?,
        };
        Ok(algorithms.into_iter().map(Choice::CublasLt).collect())
    }

    fn cublaslt(&self, backend: &Cuda) -> Result<Arc<cublaslt::Handle>, Error> {
        bind(backend)?;
        let mut slot = self.cublaslt.lock();
        if let Some(handle) = &*slot {
            return Ok(handle.clone());
        }
        let handle = cublaslt::Handle::new(Library::global()?)?;
        Ok(slot.insert(handle).clone())
    }
}

/// The compiled kernels, if this device and this problem can use them.
fn cutlass_configs(
    backend: &Cuda,
    problem: &GemmProblem,
) -> Result<&'static [cutlass::Config], Error> {
    cutlass::check_device(backend.device())?;
    let configs = cutlass::configs()?;
    cutlass::check_problem(problem)?;
    Ok(configs)
}

/// The power of two, 16 at most, that the address of every row of every matrix of every GEMM is a multiple of
/// if the first one's is.
fn alignment(problem: &GemmProblem) -> u32 {
    let batch = match problem.batch.count {
        1 => GemmBatch::ONE,
        _ => problem.batch,
    };
    let input =
        (problem.lda | problem.ldb | batch.a_stride | batch.b_stride) * problem.dtype.size();
    let output = (problem.ldc | batch.c_stride) * problem.out.size();
    let bytes = input | output | 16;
    1 << bytes.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::DType;

    #[test]
    fn alignment_follows_the_rows() {
        let p = |m, n, k, dtype| alignment(&GemmProblem::new(m, n, k, dtype));
        assert_eq!(p(5, 1160, 1032, DType::Bf16), 16);
        assert_eq!(p(5, 1161, 1032, DType::Bf16), 2);
        assert_eq!(p(5, 1162, 1032, DType::F16), 4);
        assert_eq!(p(5, 1161, 1032, DType::F32), 4);
        let batch = |count, b_stride| {
            alignment(
                &GemmProblem::new(8, 8, 8, DType::F16).with_batch(GemmBatch {
                    count,
                    a_stride: 64,
                    b_stride,
                    c_stride: 64,
                }),
            )
        };
        assert_eq!((batch(2, 0), batch(2, 68), batch(1, 68)), (16, 8, 16));
    }
}
