#![doc = include_str!("../README.md")]

pub mod all_gather_matmul;
mod backend;
pub mod cublaslt;
pub mod cuda;
pub mod cutlass;
mod error;
pub mod host;
mod problem;
#[cfg(test)]
mod protocols;
pub mod reduction;
pub mod sm90;
pub mod timing;
pub mod waiting;

pub use all_gather_matmul::{AllGatherGemmBackend, AllGatherMatmul, Protocol};
pub use backend::{Gemm, GemmBackend, GemmOperands};
pub use error::Error;
pub use problem::{GemmBatch, GemmProblem, Layout, Provider};
pub use reduction::{ReducingGemmBackend, ReducingMatmul};
pub use waiting::{WaitingGemmBackend, WaitingMatmul};

/// The pad of a rank of a world in tests that launch nothing.
#[cfg(test)]
fn pad_nowhere((rank, world): (usize, usize), slots: u32) -> warpweave_symm_mem::PadView {
    use warpweave_symm_mem::pad::StopFlags;
    use warpweave_symm_mem::{DevicePtr, PadView};
    PadView {
        peers: DevicePtr::NULL,
        sent: DevicePtr::NULL,
        expected: DevicePtr::NULL,
        tickets: DevicePtr::NULL,
        fault: DevicePtr::NULL,
        stop: StopFlags {
            device: DevicePtr::NULL,
            host: DevicePtr::NULL,
        },
        timeout_ns: 0,
        rank: rank as u32,
        world: world as u32,
        slots,
        reserved: 0,
    }
}
