#![doc = include_str!("../README.md")]

pub mod all_gather_matmul;
mod backend;
pub mod cublaslt;
pub mod cuda;
pub mod cutlass;
mod error;
pub mod host;
mod problem;
pub mod reduction;
pub mod sm90;
pub mod timing;
pub mod waiting;

pub use all_gather_matmul::{AllGatherGemmBackend, AllGatherMatmul};
pub use backend::{Gemm, GemmBackend, GemmOperands};
pub use error::Error;
pub use problem::{GemmBatch, GemmProblem, Layout, Provider};
pub use reduction::{ReducingGemmBackend, ReducingMatmul};
pub use waiting::{WaitingGemmBackend, WaitingMatmul};
