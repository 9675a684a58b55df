//! The one error type of this crate.

use warpweave_comm::CommError;
use warpweave_overlap::execute::ExecuteError;
use warpweave_overlap::select::SelectError;
use warpweave_overlap::simulate::SimulateError;
use warpweave_overlap::{PlanError, Report};
use warpweave_report::ReportError;
use warpweave_symm_mem::{Error as MemoryError, ExchangeError};

/// Result of this crate.
pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The command line asks for what does not exist.
    #[error("{0}")]
    Usage(String),
    /// This rank failed in a collective step.
    #[error("{step}: {cause}{}", rest(.peers))]
    Step {
        /// The step.
        step: String,
        /// What failed here.
        cause: Box<BenchError>,
        /// What is known of the other ranks.
        peers: Vec<String>,
    },
    /// Other ranks failed in a collective step.
    #[error("{step} failed on other ranks{}", rest(.peers))]
    Peers {
        /// The step.
        step: String,
        /// What is known of them.
        peers: Vec<String>,
    },
    /// A rank was asked to fail, for tests of what the others do.
    #[error("rank {rank} {what}, as `--inject` asked")]
    Injected {
        /// The rank.
        rank: usize,
        /// What it did.
        what: &'static str,
    },
    /// No row of the run that was to be a baseline could run.
    #[error(
        "baseline {name} is not saved: no row ran; the report says why, and `bench --list` what else there is"
    )]
    NothingToSave {
        /// The name of the baseline.
        name: String,
    },
    /// More ranks than devices.
    #[error(
        "rank {rank} of this host has no GPU of its own: there are {devices}; start fewer ranks, or set \
         WARPWEAVE_OVERSUBSCRIBE=1 to let ranks share GPUs (NCCL cannot)"
    )]
    TooFewDevices {
        /// Rank among the ranks of the host.
        rank: usize,
        /// GPUs of the host.
        devices: usize,
    },
    /// A buffer of a plan is not what the operation says it is.
    #[error("buffer `{buffer}` of plan `{plan}`: {why}")]
    Operand {
        /// The plan.
        plan: String,
        /// The buffer.
        buffer: String,
        /// What is wrong with it.
        why: String,
    },
    /// A plan could not be built.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Plans that are not proved: they race, or end in a deadlock.
    #[error("not run: {0}")]
    Unproved(#[from] Box<Report>),
    /// Plans could not be simulated.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
    /// No algorithm could be chosen.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A plan could not be bound or run.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The memory layer failed.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
    /// A GEMM failed.
    #[error(transparent)]
    Gemm(#[from] warpweave_gemm::Error),
    /// The job failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// No library has the functions of NVTX.
    #[error(
        "no NVTX library: {}; CUDA has it as libnvtx3interop.so.1, before 12.9 as libnvToolsExt.so.1: \
         put its folder into LD_LIBRARY_PATH, or name the file by --nvtx=FILE",
        .tried.join(", ")
    )]
    NoNvtx {
        /// Each file with the reason.
        tried: Vec<String>,
    },
    /// A report or another file could not be read, written or compared.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl From<std::io::Error> for BenchError {
    /// What standard output reports.
    fn from(error: std::io::Error) -> Self {
        ReportError::Output(error).into()
    }
}

impl BenchError {
    /// The exit status of a process that this error ends. Launchers, `cargo xtask bench` among them, read
    /// from it which rank to name:
    ///
    /// | status | meaning |
    /// |---|---|
    /// | 1 | this rank failed, a row was wrong, or none ran that could be a baseline |
    /// | 2 | the command line asks for what does not exist, a baseline among others, or cannot be planned |
    /// | 3 | baselines of different machines cannot be compared |
    /// | 76 | [another rank is the cause](Self::blames_a_peer) |
    pub fn exit_status(&self) -> u8 {
        match self {
            BenchError::Usage(_)
            | BenchError::Plan(_)
            | BenchError::Simulate(_)
            | BenchError::Select(_) => 2,
            BenchError::Report(error) => error.exit_status(),
            error if error.blames_a_peer() => 76,
            _ => 1,
        }
    }

    /// Whether the cause is something that this machine or build lacks, so that other rows can go on.
    pub fn is_unavailable(&self) -> bool {
        match self {
            BenchError::Execute(error) => error.is_unavailable(),
            BenchError::Memory(error) => error.is_unavailable(),
            BenchError::Comm(error) => error.is_unavailable(),
            BenchError::Plan(error) => matches!(error, PlanError::NarrowOperands { .. }),
            _ => false,
        }
    }

    /// Whether all that went wrong here is that another rank died, stalled or failed.
    pub fn blames_a_peer(&self) -> bool {
        match self {
            BenchError::Peers { .. } => true,
            BenchError::Step { cause, .. } => cause.blames_a_peer(),
            // A wait is for a peer, and so is the one that stopped the device.
            BenchError::Execute(
                ExecuteError::CollectiveTimeout { .. }
                | ExecuteError::CollectiveAborted { .. }
                | ExecuteError::Stopped { .. },
            ) => true,
            BenchError::Memory(error) | BenchError::Execute(ExecuteError::Memory(error)) => {
                memory_blames_a_peer(error)
            }
            BenchError::Comm(error) | BenchError::Execute(ExecuteError::Comm(error)) => {
                comm_blames_a_peer(error)
            }
            BenchError::Exchange(error) | BenchError::Execute(ExecuteError::Exchange(error)) => {
                exchange_blames_a_peer(error)
            }
            _ => false,
        }
    }
}

/// What was made, or why this machine or build cannot make it.
///
/// # Errors
/// Any other error.
pub fn if_available<T>(made: Result<T, impl Into<BenchError>>) -> Result<Result<T, String>> {
    match made.map_err(Into::into) {
        Ok(made) => Ok(Ok(made)),
        Err(error) if error.is_unavailable() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

fn memory_blames_a_peer(error: &MemoryError) -> bool {
    match error {
        MemoryError::SignalFault(_) | MemoryError::PeerFailed { .. } => true,
        MemoryError::Exchange(error) => exchange_blames_a_peer(error),
        _ => false,
    }
}

fn exchange_blames_a_peer(error: &ExchangeError) -> bool {
    matches!(
        error,
        ExchangeError::Timeout { .. }
            | ExchangeError::PeerLost { .. }
            | ExchangeError::PeerFailed { .. }
    )
}

fn comm_blames_a_peer(error: &CommError) -> bool {
    match error {
        // Without ranks to wait for it is this rank that did not reach the store.
        CommError::Timeout { waiting_for, .. } => !waiting_for.is_empty(),
        CommError::PeerLost { .. } | CommError::PeerFailed { .. } => true,
        // `ncclRemoteError`: the connection to a peer broke.
        CommError::Nccl { code, .. } => *code == 6,
        CommError::Exchange(error) => exchange_blames_a_peer(error),
        _ => false,
    }
}

fn rest(peers: &[String]) -> String {
    peers.iter().map(|peer| format!("; {peer}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> ExchangeError {
        ExchangeError::PeerLost {
            rank: 2,
            tag: "round 1".into(),
            cause: "the process ended".into(),
        }
    }

    fn step(cause: BenchError) -> BenchError {
        BenchError::Step {
            step: "round 1".into(),
            cause: Box::new(cause),
            peers: vec!["lost rank 2".into()],
        }
    }

    #[test]
    fn a_rank_that_only_lost_its_peer_says_so_by_its_exit_status() {
        let peers = BenchError::Peers {
            step: "round 1".into(),
            peers: vec!["lost rank 2".into()],
        };
        let of_memory = ExecuteError::Memory(MemoryError::Exchange(lost()));
        for error in [
            peers,
            BenchError::Exchange(lost()),
            BenchError::Execute(of_memory),
            BenchError::Execute(ExecuteError::Stopped {
                plan: "ring".into(),
            }),
            step(BenchError::Exchange(lost())),
        ] {
            assert_eq!(error.exit_status(), 76, "{error}");
        }
    }

    #[test]
    fn a_rank_that_failed_itself_does_not_hide_behind_the_others() {
        let own = BenchError::Injected {
            rank: 1,
            what: "stalled",
        };
        assert_eq!(step(own).exit_status(), 1);
        let differs = MemoryError::Disagreement {
            what: "the list of shapes",
            rank: 0,
            mine: "a".into(),
            peer: 1,
            theirs: "b".into(),
        };
        assert_eq!(BenchError::Memory(differs).exit_status(), 1);
        assert_eq!(BenchError::Usage("no such suite".into()).exit_status(), 2);
    }
}
