//! A problem with its algorithm and workspace on a GPU.

use std::sync::Arc;

use warpweave_symm_mem::{Backend, Cuda, Memory};

use super::{Choice, handle};
use crate::cublaslt::{Algorithm, Matmul};
use crate::cutlass::{self, Candidate};
use crate::{Error, GemmOperands, GemmProblem, sm90};

/// Device memory that one or several plans use as scratch.
pub(super) type Workspace = Arc<<Cuda as Backend>::Memory>;

/// A product ready to be launched.
#[derive(Debug)]
pub struct CudaPlan {
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
        plan: cutlass::Plan,
        candidate: Candidate,
    },
    Sm90(Box<sm90::Plan>),
}

impl CudaPlan {
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
            Kernel::Cutlass { plan, .. } => plan.workspace(),
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
            Kernel::Cutlass { candidate, .. } => Choice::Cutlass(*candidate),
            Kernel::Sm90(plan) => Choice::Sm90(plan.candidate()),
        }
    }

    pub(super) fn problem(&self) -> &GemmProblem {
        &self.problem
    }

    /// The algorithm's name with its arguments.
    pub(super) fn algorithm(&self) -> String {
        match self.choice() {
            Choice::CublasLt(algorithm) => format!("cublaslt heuristic #{}", algorithm.rank),
            Choice::Cutlass(candidate) => {
                let name = cutlass::configs()
                    .ok()
                    .and_then(|configs| configs.get(candidate.config))
                    .map_or("unknown", |config| config.name);
                format!(
                    "cutlass {name} raster {} swizzle {}",
                    candidate.raster, candidate.swizzle
                )
            }
            Choice::Sm90(candidate) => format!("sm90 {candidate}"),
        }
    }

    /// Enqueues the product.
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
                // SAFETY: the caller vouches for the matrices and the context; the algorithm was proposed for this
                // problem and the workspace has its size.
                unsafe { matmul.launch(algorithm, operands, workspace, handle::raw(stream)) }
            }
            Kernel::Cutlass { plan, .. } => {
                // SAFETY: the caller vouches for the matrices and the context; the workspace has the plan's size.
                unsafe { plan.launch(operands, workspace, handle::raw(stream)) }
            }
            Kernel::Sm90(plan) => {
                // SAFETY: the caller vouches for the matrices.
                unsafe { plan.launch(cuda, stream, operands) }
            }
        }
    }
}
