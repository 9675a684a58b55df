//! Memory for the results of a captured step, outside of its graph.
//!
//! What a capture allocates from its stream becomes nodes of the graph, which stand between kernels that
//! could follow each other early (programmatic dependent launches). So results are taken from another stream
//! during a capture, and are kept for as long as the graph.

use std::cell::RefCell;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DeviceRepr};
use candle_core::{CudaDevice, Error, Result, Tensor};

thread_local! {
    /// That of the capture that this thread is in.
    static IN_USE: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

/// The memory of a graph, which must not be launched once this is gone.
#[derive(Debug)]
pub(crate) struct Scratch {
    stream: Arc<CudaStream>,
    results: Vec<Tensor>,
}

impl Scratch {
    /// Runs `capture`, whose results are in the returned memory.
    ///
    /// # Errors
    /// Those of `capture`; errors of the device.
    pub fn of<R, E: From<Error>>(
        device: &CudaDevice,
        capture: impl FnOnce() -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, Self), E> {
        let stream = device.cuda_stream().context().new_stream();
        let (stream, results) = (stream.map_err(Error::wrap)?, Vec::new());
        IN_USE.set(Some(Scratch { stream, results }));
        let captured = capture();
        let scratch = IN_USE.take().expect("it was set above");
        // The memory is there when the stream that it is taken from has come so far.
        scratch.stream.synchronize().map_err(Error::wrap)?;
        Ok((captured?, scratch))
    }
}

/// Memory for `count` elements, of a result that is then [`kept`].
///
/// # Safety
/// All of it is written before it is read, by work on the stream of `device`.
///
/// # Errors
/// Errors of the device.
pub(crate) unsafe fn alloc<T: DeviceRepr>(
    device: &CudaDevice,
    count: usize,
) -> Result<CudaSlice<T>> {
    IN_USE.with_borrow(|scratch| match scratch {
        // SAFETY: the caller's obligation.
        None => unsafe { device.alloc::<T>(count) },
        // SAFETY: as above.
        Some(scratch) => unsafe { scratch.stream.alloc::<T>(count) }.map_err(Error::wrap),
    })
}

/// The result, which the capture that this thread is in keeps.
pub(crate) fn kept(result: Tensor) -> Tensor {
    IN_USE.with_borrow_mut(|scratch| {
        if let Some(scratch) = scratch {
            scratch.results.push(result.clone());
        }
    });
    result
}
