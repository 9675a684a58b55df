//! cuBLASLt, loaded at run time: a missing library is an error value.
//!
//! These are the layers below [`GemmBackend`](crate::GemmBackend); a project that has its own CUDA context
//! can use them directly. They take raw addresses and streams and need no CUDA driver until a GEMM is
//! launched.

mod header;
mod heuristics;
mod layout;
mod library;
mod matmul;
mod search;

pub use heuristics::{CANONICAL_ROWS, WORKSPACE_LIMIT};
pub use library::Library;
pub use matmul::{Algorithm, Handle, Matmul, check_extents};
