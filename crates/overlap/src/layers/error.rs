//! Why a layer cannot be made or called.

use crate::execute::ExecuteError;
use crate::schedule::ScheduleError;
use crate::select::SelectError;
use thiserror::Error;
use warpweave_symm_mem::{DType, ExchangeError};

/// Result of making and calling layers.
pub type Result<T, E = LayerError> = std::result::Result<T, E>;

/// Why a layer cannot be made or called.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LayerError {
    /// No schedule of the layer runs on this machine.
    #[error("no schedule of `{layer}` runs here: {}", reasons.join("; "))]
    NothingRuns {
        /// The layer.
        layer: String,
        /// Why each schedule was left out.
        reasons: Vec<String>,
    },
    /// There is no batch-invariant GEMM of this element type on GPUs.
    #[error(
        "GPUs have no batch-invariant GEMM of {dtype}: take f16, bf16 or e4m3, or give it up by \
         Reproducible::No"
    )]
    NotReproducible {
        /// The element type.
        dtype: DType,
    },
    /// A schedule that was asked for and whose bits of a row may depend on M.
    #[error(
        "`{schedule}` is not batch-invariant: take another, or give it up by \
         Options::not_reproducible()"
    )]
    NotBatchInvariant {
        /// What was asked for.
        schedule: String,
    },
    /// A schedule that was asked for and is none of this layer's.
    #[error("`{schedule}` is no schedule of `{layer}`; there are {}", known.join(", "))]
    UnknownSchedule {
        /// The layer.
        layer: String,
        /// What was asked for.
        schedule: String,
        /// What there is.
        known: Vec<String>,
    },
    /// M is 0 or more than the layer was made for.
    #[error("`{layer}` takes M from 1 to {most}, not {m}: make it with a larger maximum")]
    OutOfRange {
        /// The layer.
        layer: String,
        /// What was asked for.
        m: usize,
        /// The largest M.
        most: usize,
    },
    /// A bias for a layer without one, none for a layer with one, or one that is too short or in the result.
    #[error("bias of `{layer}`: {why}")]
    Bias {
        /// The layer.
        layer: String,
        /// What is wrong.
        why: String,
    },
    /// Scales for a layer without, or none for a layer with scales.
    #[error("scales of `{layer}`: {why}")]
    Scales {
        /// The layer.
        layer: String,
        /// What is wrong.
        why: &'static str,
    },
    /// No configuration could be chosen.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// An error of the execution, among them [`ExecuteError::Stopped`] after a fault.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl From<ScheduleError> for LayerError {
    fn from(error: ScheduleError) -> Self {
        LayerError::Execute(error.into())
    }
}

impl From<warpweave_symm_mem::Error> for LayerError {
    fn from(error: warpweave_symm_mem::Error) -> Self {
        LayerError::Execute(error.into())
    }
}

impl LayerError {
    /// Whether a wait of this device has failed earlier, so that nothing was enqueued: see
    /// [`Executor::recover`](crate::execute::Executor::recover).
    pub fn is_stopped(&self) -> bool {
        matches!(self, LayerError::Execute(ExecuteError::Stopped { .. }))
    }
}
