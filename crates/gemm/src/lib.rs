#![doc = include_str!("../README.md")]

mod backend;
pub mod cublaslt;
mod error;
pub mod host;
mod problem;

pub use backend::{Gemm, GemmBackend};
pub use error::Error;
pub use problem::{GemmProblem, Layout, Provider};
