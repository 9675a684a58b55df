#![doc = include_str!("../README.md")]

pub mod communicator;
pub mod error;
pub mod exchange;
pub mod host;
pub mod job;
pub mod nccl;
pub mod store;

pub use communicator::Communicator;
pub use error::{CommError, Result};
pub use exchange::LocalExchange;
pub use job::{Job, JobToken, Launcher};
pub use nccl::{NcclComm, NcclLibrary, NcclOptions};
pub use store::{Store, StoreServer};
pub use warpweave_symm_mem::{Exchange, ExchangeError};
