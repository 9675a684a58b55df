#![doc = include_str!("../README.md")]

pub mod all_gather_matmul;
mod backend;
mod capture;
pub mod chunked_matmul;
pub mod cublaslt;
pub mod cuda;
pub mod cutlass;
mod error;
pub mod host;
mod launches;
pub mod matmul_reduce;
mod peers;
mod problem;
#[cfg(test)]
mod protocols;
pub mod sm90;
mod tables;
pub mod timing;

pub use all_gather_matmul::{
    AllGatherGemmBackend, AllGatherMatmul, AllGatherOperands, GatheredScales, Protocol,
};
pub use backend::{Gemm, GemmBackend, GemmOperands, PreparedGemm};
pub use chunked_matmul::{ChunkedGemmBackend, ChunkedMatmul, ChunkedOperands};
pub use error::Error;
pub use matmul_reduce::{GemmReduceBackend, MatmulReduce, ReduceOperands};
pub use peers::Peers;
pub use problem::{
    Activation, GATE_COLUMNS, GemmBatch, GemmProblem, Layout, Provider, SCALE_BLOCK, Scaling,
    Tiling,
};

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
