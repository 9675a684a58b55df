//! A problem with its algorithm on a GPU.

use std::ffi::c_void;
use std::sync::Arc;

use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr};

use crate::backend::check_address;
use crate::cublaslt::{Algorithm, Matmul};
use crate::cutlass::{self, Tiling};
use crate::{Error, GemmOperands, GemmProblem, sm90};

/// Bytes that the address of a workspace must be a multiple of.
const WORKSPACE_ALIGNMENT: u64 = 256;

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

/// A GEMM ready to be launched.
#[derive(Debug)]
pub struct CudaPrepared {
    problem: GemmProblem,
    kernel: Kernel,
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
    FewRows(Box<sm90::PreparedFewRows>),
}

impl CudaPrepared {
    pub(super) fn new(problem: GemmProblem, kernel: Kernel) -> Self {
        Self { problem, kernel }
    }

    /// Bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> usize {
        match &self.kernel {
            Kernel::CublasLt { algorithm, .. } => algorithm.workspace,
            Kernel::Cutlass { prepared, .. } => prepared.workspace(),
            Kernel::Sm90(_) | Kernel::FewRows(_) => 0,
        }
    }

    /// The algorithm that it uses.
    pub fn choice(&self) -> Choice {
        match &self.kernel {
            Kernel::CublasLt { algorithm, .. } => Choice::CublasLt(*algorithm),
            Kernel::Cutlass { tiling, .. } => Choice::Cutlass(*tiling),
            Kernel::Sm90(prepared) => Choice::Sm90(prepared.tiling()),
            Kernel::FewRows(_) => Choice::Sm90(sm90::FEW_ROWS_TILING),
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
        workspace: DevicePtr,
    ) -> Result<(), Error> {
        let workspace = match self.workspace_bytes() {
            0 => 0,
            _ => {
                let named = ("workspace", None);
                check_address(&self.problem, named, workspace, WORKSPACE_ALIGNMENT)?;
                workspace.0
            }
        };
        match &self.kernel {
            Kernel::CublasLt {
                matmul,
                algorithm,
                alignment,
            } => {
                let alignment = |dtype: DType| u64::from(*alignment).max(dtype.size() as u64);
                operands.check_for(&self.problem, alignment, cutlass::ADDRESS_ALIGNMENT)?;
                // SAFETY: the caller vouches for the matrices and the context; the algorithm was proposed for
                // this problem and the caller vouches for the workspace's size.
                unsafe { matmul.launch(algorithm, operands, workspace, raw(stream)) }
            }
            Kernel::Cutlass { prepared, .. } => {
                // SAFETY: the caller vouches for the matrices and the context; he vouches for the
                // workspace too.
                unsafe { prepared.launch(operands, workspace, raw(stream)) }
            }
            Kernel::Sm90(prepared) => {
                // SAFETY: the caller vouches for the matrices.
                unsafe { prepared.launch(cuda, stream, operands) }
            }
            Kernel::FewRows(prepared) => {
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
