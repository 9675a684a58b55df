#![doc = include_str!("../README.md")]

mod auth;
pub mod collective;
pub mod communicator;
pub mod error;
pub mod exchange;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
#[allow(missing_docs)]
pub mod fuzzing;
pub mod host;
pub mod job;
pub mod measured;
pub mod nccl;
mod network;
pub mod p2p;
pub mod store;

pub use collective::{AddRmsNorm, CollectiveKernels, CollectiveOptions, Collectives, Operand};
pub use communicator::Communicator;
pub use error::{CommError, Result};
pub use exchange::LocalExchange;
pub use job::{Job, JobToken, Launcher};
pub use measured::Measured;
pub use nccl::{NcclComm, NcclLibrary, NcclOptions};
pub use p2p::PointToPoint;
pub use store::{Store, StoreServer};
pub use warpweave_symm_mem::{Exchange, ExchangeError};
