#![doc = include_str!("../README.md")]

pub mod backend;
pub mod cuda;
pub mod descriptor;
pub mod error;
pub mod host;
pub mod reference;
pub mod shard;
pub mod sum;

pub use backend::KernelBackend;
pub use descriptor::{GatherMatmul, GatherMode, NaiveRemoteRead};
pub use error::{Error, Result};
pub use shard::shard;
pub use sum::{MAX_SUMMANDS, Strided, Sum};
