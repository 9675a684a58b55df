#![doc = include_str!("../README.md")]

pub mod error;
pub mod job;
pub mod store;

pub use error::{CommError, Result};
pub use job::{Job, JobToken, Launcher};
pub use store::{Store, StoreServer};
