//! Why a plan could not be bound or run.

use warpweave_symm_mem::{ExchangeError, FaultCause, SignalFault};

use crate::error::PlanError;
use crate::schedule::ScheduleError;

/// Result of binding and running.
pub type Result<T, E = ExecuteError> = std::result::Result<T, E>;

/// What failed when a plan was bound to a device or run there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// The plan cannot be run by anyone: a region outside its buffer, shapes that do not fit, an id of
    /// nothing.
    #[error("plan `{plan}` of rank {rank}, {place}: {why}")]
    InvalidPlan {
        /// Name of the plan.
        plan: String,
        /// The rank whose plan it is.
        rank: usize,
        /// The operation or the buffer.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// The ranks bound plans that do not belong together.
    #[error("plans differ between ranks: `{mine}` on rank {rank}, `{theirs}` on rank {peer}")]
    Disagreement {
        /// This rank.
        rank: usize,
        /// The first line of its plan's interface that differs.
        mine: String,
        /// The other rank.
        peer: usize,
        /// The same line there.
        theirs: String,
    },
    /// A collective did not end, since not all ranks came to it. It was aborted, which
    /// [`Bound::recover`](super::Bound::recover) makes good.
    #[error(
        "rank {rank} waited {after:?} in a collective; another rank is dead, stalled or at another call"
    )]
    CollectiveTimeout {
        /// The rank that waited.
        rank: usize,
        /// How long it waited.
        after: std::time::Duration,
    },
    /// Another rank aborted a collective for which this one was late, so that its results are not valid.
    /// [`Bound::recover`](super::Bound::recover) makes it good.
    #[error(
        "rank {rank} was late for a collective that rank {peer} had aborted: its results are not valid"
    )]
    CollectiveAborted {
        /// This rank.
        rank: usize,
        /// The rank that aborted it.
        peer: usize,
    },
    /// A replay was asked for and nothing has been captured, or nothing since a recovery.
    #[error(
        "plan `{plan}` has not been captured since its last recovery: call `capture` before `replay`"
    )]
    NotCaptured {
        /// Name of the plan.
        plan: String,
    },
    /// A wait of this device has failed, so that a call was not enqueued: its copies to peers could not be
    /// left out.
    #[error(
        "`{plan}` was not run: a wait of this device has failed; `synchronize` says which, then `recover`"
    )]
    Stopped {
        /// Name of the plan.
        plan: String,
    },
    /// A schedule that does not exist, or not for this M.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// An operand of a call that the schedule cannot take.
    #[error("`{schedule}`, operand `{operand}`: {why}")]
    Operand {
        /// Name of the schedule's configuration.
        schedule: String,
        /// Name of the operand.
        operand: String,
        /// What is wrong.
        why: String,
    },
    /// A bound plan has no buffer of this name, or not of this size.
    #[error("plan `{plan}`, buffer `{buffer}`: {why}")]
    Buffer {
        /// Name of the plan.
        plan: String,
        /// Name of the buffer.
        buffer: String,
        /// What is wrong.
        why: String,
    },
    /// An error of the memory layer, among them waits for peers that timed out.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
    /// An error of the communicator.
    #[error(transparent)]
    Comm(#[from] warpweave_comm::CommError),
    /// An error of a GEMM.
    #[error(transparent)]
    Gemm(#[from] warpweave_gemm::Error),
    /// An error of a kernel.
    #[error(transparent)]
    Kernel(#[from] warpweave_kernels::Error),
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl warpweave_symm_mem::Failure for ExecuteError {
    fn is_unavailable(&self) -> bool {
        self.is_unavailable()
    }
}

impl ExecuteError {
    /// True if the cause is a capability that a machine, a build or an algorithm lacks, so that other plans
    /// can go on. All ranks agree on it when it is an answer of [`Executor::bind`](super::Executor::bind).
    pub fn is_unavailable(&self) -> bool {
        use warpweave_comm::CommError;
        use warpweave_gemm::Error as Gemm;
        match self {
            ExecuteError::Memory(error) | ExecuteError::Gemm(Gemm::Memory(error)) => {
                error.is_unavailable()
            }
            ExecuteError::Kernel(error) => error.is_unavailable(),
            ExecuteError::Schedule(ScheduleError::Plan(error)) => {
                matches!(error, PlanError::NarrowOperands { .. })
            }
            ExecuteError::Gemm(error) => matches!(
                error,
                Gemm::Unsupported { .. }
                    | Gemm::WrongBackend { .. }
                    | Gemm::MissingFeature { .. }
                    | Gemm::Device { .. }
                    | Gemm::LibraryNotFound { .. }
                    | Gemm::MissingSymbol { .. }
                    | Gemm::NoAlgorithm { .. }
            ),
            ExecuteError::Comm(error) => matches!(
                error,
                CommError::NcclMissing { .. } | CommError::NcclUnusable { .. }
            ),
            _ => false,
        }
    }

    /// The same error of a group of `ranks`, which names them as the world does.
    pub(super) fn with_ranks(mut self, ranks: &[usize]) -> Self {
        match &mut self {
            ExecuteError::Memory(error) => name_ranks(error, ranks),
            // Of a communicator of NCCL's, which has the group's numbers.
            ExecuteError::Comm(warpweave_comm::CommError::PeerLost { rank, peer, .. }) => {
                name_rank(rank, ranks);
                name_rank(peer, ranks);
            }
            ExecuteError::CollectiveTimeout { rank, .. } => name_rank(rank, ranks),
            ExecuteError::CollectiveAborted { rank, peer } => {
                name_rank(rank, ranks);
                name_rank(peer, ranks);
            }
            _ => {}
        }
        self
    }

    /// The record of a wait that timed out, if that is the cause.
    pub fn signal_fault(&self) -> Option<&SignalFault> {
        match self {
            ExecuteError::Memory(warpweave_symm_mem::Error::SignalFault(timeout)) => Some(timeout),
            _ => None,
        }
    }
}

fn name_rank(rank: &mut usize, ranks: &[usize]) {
    *rank = ranks.get(*rank).copied().unwrap_or(*rank);
}

/// Makes an error of a group of `ranks` name them as the world does.
fn name_ranks(error: &mut warpweave_symm_mem::Error, ranks: &[usize]) {
    let name = |rank: &mut usize| name_rank(rank, ranks);
    if let warpweave_symm_mem::Error::SignalFault(fault) = error {
        name(&mut fault.rank);
        name(&mut fault.peer);
        fault.root.iter_mut().for_each(name);
        match &mut fault.cause {
            FaultCause::Deadline { missing } => missing.iter_mut().for_each(name),
            FaultCause::PeerGaveUp { reporter } => name(reporter),
            _ => {}
        }
    }
}
