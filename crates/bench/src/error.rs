//! The one error type of this crate.

use std::path::PathBuf;

use warpweave_comm::CommError;
use warpweave_overlap::PlanError;
use warpweave_overlap::execute::ExecuteError;
use warpweave_symm_mem::ExchangeError;

/// Result of this crate.
pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The command line asks for what does not exist.
    #[error("{0}")]
    Usage(String),
    /// The ranks were started with different arguments.
    #[error("{what} differs between ranks: {mine} on rank {rank}, {theirs} on rank {peer}")]
    Disagreement {
        /// What must be the same.
        what: &'static str,
        /// This rank.
        rank: usize,
        /// Its value.
        mine: String,
        /// The other rank.
        peer: usize,
        /// Its value.
        theirs: String,
    },
    /// This rank failed in a step that all ranks take together.
    #[error("{step}: {cause}{}", rest(.peers))]
    Step {
        /// The step.
        step: String,
        /// What failed here.
        cause: Box<BenchError>,
        /// What is known of the other ranks.
        peers: Vec<String>,
    },
    /// Other ranks failed in a step that all ranks take together.
    #[error("{step} failed on other ranks{}", rest(.peers))]
    Peers {
        /// The step.
        step: String,
        /// What is known of them.
        peers: Vec<String>,
    },
    /// A rank was told to fail, for tests of what the others do.
    #[error("rank {rank} {what}, as `--inject` asked")]
    Injected {
        /// The rank.
        rank: usize,
        /// What it did.
        what: &'static str,
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
    /// A plan could not be built.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan could not be bound or run.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The memory layer failed.
    #[error(transparent)]
    Memory(#[from] warpweave_symm_mem::Error),
    /// A matrix product failed.
    #[error(transparent)]
    Gemm(#[from] warpweave_gemm::Error),
    /// The job failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The exchange with the peers failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A file could not be written.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Standard output is closed.
    #[error("writing the report: {0}")]
    Output(#[from] std::io::Error),
}

fn rest(peers: &[String]) -> String {
    peers.iter().map(|peer| format!("; {peer}")).collect()
}
