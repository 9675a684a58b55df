#![doc = include_str!("../README.md")]

pub mod backend;
pub mod cuda;
pub mod descriptor;
pub mod error;
pub mod host;
pub mod local_reduce;
pub mod reference;
pub mod shard;

pub use backend::KernelBackend;
pub use descriptor::{GatherMatmul, GatherMode, NaiveRemoteRead};
pub use error::{Error, Result};
pub use local_reduce::{LocalReduce, MAX_PARTIALS, Strided};
pub use shard::shard;
