//! Graphs captured from streams.

use cudarc::driver::sys;

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::stream::CudaQueue;
use crate::error::Result;

/// An instantiated graph.
#[derive(Debug)]
pub struct CudaWork {
    exec: sys::CUgraphExec,
    cuda: Cuda,
}

// SAFETY: the driver allows a graph to be launched from any thread, one at a time, which `&self` from one owner gives;
// it is not `Sync`.
unsafe impl Send for CudaWork {}

/// A captured graph that is destroyed on every way out.
struct Template<'a>(sys::CUgraph, &'a Cuda);

impl Drop for Template<'_> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: ended by this capture and destroyed once.
            check_in_drop(unsafe { sys::cuGraphDestroy(self.0) }, "cuGraphDestroy", self.1.name());
        }
    }
}

pub(super) fn capture(
    cuda: &Cuda,
    stream: &CudaQueue,
    enqueue: impl FnOnce() -> Result<()>,
) -> Result<CudaWork> {
    cuda.bind()?;
    // Relaxed: CUTLASS and cuBLASLt set function attributes as they launch, which stricter modes may refuse.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream lives.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) };
    check(begun, "cuStreamBeginCapture", cuda.name())?;
    let enqueued = enqueue();
    let mut template = Template(std::ptr::null_mut(), cuda);
    // SAFETY: the capture was begun above; a failed one ends here as well.
    let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &mut template.0) };
    enqueued?;
    check(ended, "cuStreamEndCapture", cuda.name())?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: the graph was just captured.
    let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, template.0, 0) };
    check(made, "cuGraphInstantiateWithFlags", cuda.name())?;
    let work = CudaWork { exec, cuda: cuda.clone() };
    // SAFETY: both live; the first launch need not upload then.
    check(unsafe { sys::cuGraphUpload(exec, stream.raw()) }, "cuGraphUpload", cuda.name())?;
    Ok(work)
}

impl CudaWork {
    pub(super) fn launch(&self, stream: &CudaQueue) -> Result<()> {
        self.cuda.bind()?;
        // SAFETY: both live. The driver orders launches of one graph.
        check(unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) }, "cuGraphLaunch", self.cuda.name())
    }
}

impl Drop for CudaWork {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: instantiated once and destroyed once; the driver waits for launches under way.
            check_in_drop(unsafe { sys::cuGraphExecDestroy(self.exec) }, "cuGraphExecDestroy", self.cuda.name());
        }
    }
}
