//! GEMMs on the CPU: the reference that stands in for every provider on the host backend.

mod all_gather_matmul;
mod backend;
mod chunked_matmul;
mod matmul_reduce;
mod one_shot;
mod panels;
mod partials;
mod reference;
mod tile;

use crate::Error;

pub use backend::HostPrepared;

pub use panels::{multiply, multiply_raw, multiply_with_bias};
pub use reference::{reference, reference_with_bias};
pub use warpweave_symm_mem::host::Element;

/// The error of a stream whose work has failed.
fn stream_error(error: Error) -> warpweave_symm_mem::Error {
    warpweave_symm_mem::Error::Stream {
        device: "host".into(),
        cause: error.to_string(),
    }
}
