//! A problem with its algorithm and workspace on a GPU.

use std::ffi::c_void;
use std::sync::Arc;

use warpweave_symm_mem::{Backend, Cuda, Memory};

use crate::cublaslt::{Algorithm, Matmul};
use crate::cutlass::{self, Tiling};
use crate::{Error, GemmOperands, GemmProblem, sm90};

/// One algorithm of one provider.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// One of the heuristics' proposals.
    CublasLt(Algorithm),
    /// A compiled kernel with its arguments.
    Cutlass(Tiling),
    /// A hand-written kernel with its arguments.
    Sm90(sm90::Tiling),
}

/// Device memory that one or several plans use as scratch.
pub(super) type Workspace = Arc<<Cuda as Backend>::Memory>;

/// A GEMM ready to be launched.
#[derive(Debug)]
pub struct CudaPrepared {
    problem: GemmProblem,
    kernel: Kernel,
    workspace: Option<Workspace>,
}

#[derive(Debug)]
pub(super) enum Kernel {
    CublasLt {
        matmul: Arc<Matmul>,
        algorithm: Algorithm,
        /// What the heuristics were promised of the operands' addresses, in bytes.
        alignment: u32,
    },
    Cutlass {
        prepared: cutlass::Prepared,
        tiling: Tiling,
    },
    Sm90(Box<sm90::Prepared>),
}

impl CudaPrepared {
    pub(super) fn new(problem: GemmProblem, kernel: Kernel) -> Self {
        Self {
            problem,
            kernel,
            workspace: None,
        }
    }

    /// Bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> usize {
        match &self.kernel {
            Kernel::CublasLt { algorithm, .. } => algorithm.workspace,
            Kernel::Cutlass { prepared, .. } => prepared.workspace(),
            Kernel::Sm90(_) => 0,
        }
    }

    pub(super) fn use_workspace(&mut self, workspace: Workspace) {
        self.workspace = Some(workspace);
    }

    /// The algorithm that it uses.
    pub fn choice(&self) -> Choice {
        match &self.kernel {
            Kernel::CublasLt { algorithm, .. } => Choice::CublasLt(*algorithm),
            Kernel::Cutlass { tiling, .. } => Choice::Cutlass(*tiling),
            Kernel::Sm90(prepared) => Choice::Sm90(prepared.tiling()),
        }
    }

    pub(super) fn problem(&self) -> &GemmProblem {
        &self.problem
    }

    /// The algorithm's name with its arguments.
    pub(super) fn algorithm(&self) -> String {
        match self.choice() {
            Choice::CublasLt(algorithm) => format!("cublaslt heuristic #{}", algorithm.rank),
            Choice::Cutlass(tiling) => {
                let name = cutlass::configs()
                    .ok()
                    .and_then(|configs| configs.get(tiling.config))
                    .map_or("unknown", |config| config.name);
                format!(
                    "cutlass {name} raster {} swizzle {}",
                    tiling.raster, tiling.swizzle
                )
            }
            Choice::Sm90(tiling) => format!("sm90 {tiling}"),
        }
    }

    /// Enqueues the GEMM.
    ///
    /// # Safety
    /// As [`GemmBackend::gemm`](crate::GemmBackend::gemm), and the device's context is current.
    pub(super) unsafe fn launch(
        &self,
        cuda: &Cuda,
        stream: &<Cuda as Backend>::Stream,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        let workspace = self
            .workspace
            .as_ref()
            .map_or(0, |memory| memory.address().0);
        match &self.kernel {
            Kernel::CublasLt {
                matmul,
                algorithm,
                alignment,
            } => {
                operands.check(&self.problem, |dtype| {
                    u64::from(*alignment).max(dtype.size() as u64)
                })?;
                // SAFETY: the caller vouches for the matrices and the context; the algorithm was proposed for
                // this problem and the workspace has its size.
                unsafe { matmul.launch(algorithm, operands, workspace, raw(stream)) }
            }
            Kernel::Cutlass { prepared, .. } => {
                // SAFETY: the caller vouches for the matrices and the context; the workspace has the plan's
                // size.
                unsafe { prepared.launch(operands, workspace, raw(stream)) }
            }
            Kernel::Sm90(prepared) => {
                // SAFETY: the caller vouches for the matrices.
                unsafe { prepared.launch(cuda, stream, operands) }
            }
        }
    }
}

/// Makes the device's context current on this thread.
pub(super) fn bind(backend: &Cuda) -> Result<(), Error> {
    Ok(backend.bind()?)
}

pub(super) fn ordinal(backend: &Cuda) -> i32 {
    backend.context().ordinal() as i32
}

pub(super) fn raw(stream: &<Cuda as Backend>::Stream) -> *mut c_void {
    stream.raw().cast()
}
