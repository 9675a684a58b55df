//! GEMMs on the CPU: the reference that stands in for every provider on the host backend.

mod all_gather_matmul;
mod backend;
mod chunked_matmul;
mod matmul_reduce;
mod multimem_reduce;
mod one_shot;
mod panels;
mod partials;
mod reference;
mod scales;
mod tile;

use std::sync::Arc;

use warpweave_symm_mem::Host;
use warpweave_symm_mem::host::HostStream;

use crate::Error;
use crate::launches::Launch;

pub use backend::HostPrepared;

pub use panels::{multiply, multiply_raw, multiply_with_bias, multiply_with_scales};
pub use reference::{reference, reference_with_bias, reference_with_scales};
pub use warpweave_symm_mem::host::Element;

/// Enqueues the host twin of a prepared GEMM with its operands.
fn enqueue<G: Send + Sync + 'static, O: Send + Sync + 'static>(
    host: &Host,
    stream: &HostStream,
    name: &'static str,
    (gemm, operands): (&Arc<G>, O),
    twin: impl Fn(Launch<'_, G, O>) -> Result<(), Error> + Send + Sync + 'static,
) -> Result<(), Error> {
    let gemm = gemm.clone();
    host.launch(stream, name, move || {
        let (gemm, operands) = (&*gemm, &operands);
        twin(Launch { gemm, operands }).map_err(stream_error)
    })?;
    Ok(())
}

/// The error of a stream whose work has failed.
fn stream_error(error: Error) -> warpweave_symm_mem::Error {
    warpweave_symm_mem::Error::Stream {
        device: "host".into(),
        cause: error.to_string(),
    }
}
