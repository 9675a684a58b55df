//! Graphs captured from streams.

use cudarc::driver::sys;

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::stream::{self, CudaStream, Joining};
use crate::error::{Error, Result};

/// An instantiated graph.
#[derive(Debug)]
pub struct CudaGraph {
    exec: sys::CUgraphExec,
    cuda: Cuda,
}

// SAFETY: the driver allows a graph to be launched from any thread, one at a time, which `&self` from one
// owner gives; it is not `Sync`.
unsafe impl Send for CudaGraph {}

/// A capture in progress. Ends the capture and destroys its graph on drop.
struct Capture<'a> {
    stream: &'a CudaStream,
    cuda: &'a Cuda,
    ended: bool,
    graph: sys::CUgraph,
}

impl Capture<'_> {
    fn end(&mut self) -> Result<()> {
        self.ended = true;
        // SAFETY: the capture was begun on this stream and not ended yet; a failed one ends here as well.
        let result = unsafe { sys::cuStreamEndCapture(self.stream.raw(), &mut self.graph) };
        check(result, "cuStreamEndCapture", self.cuda.name())
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.cuda.bind_to_free();
            // The caller sees the error that ended the capture.
            let _ = self.end();
        }
        if !self.graph.is_null() {
            // SAFETY: ended by this capture and destroyed once.
            let result = unsafe { sys::cuGraphDestroy(self.graph) };
            check_in_drop(result, "cuGraphDestroy", self.cuda.name());
        }
    }
}

pub(super) fn capture<E: From<Error>>(
    cuda: &Cuda,
    stream: &CudaStream,
    enqueue: impl FnOnce() -> Result<(), E>,
) -> Result<CudaGraph, E> {
    cuda.bind()?;
    if stream::is_capturing(cuda, stream)? {
        let nested = Error::InvalidArgument {
            what: "call during capture",
            why: "`capture` cannot be captured in a graph".into(),
        };
        return Err(nested.into());
    }
    let _joining = Joining::new(cuda, stream)?;
    // Relaxed: CUTLASS and cuBLASLt set function attributes as they launch, which stricter modes may refuse.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream lives.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) };
    check(begun, "cuStreamBeginCapture", cuda.name())?;
    let mut capture = Capture {
        stream,
        cuda,
        ended: false,
        graph: std::ptr::null_mut(),
    };
    enqueue()?;
    // The enqueued work may have bound another device.
    cuda.bind()?;
    capture.end()?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: the graph was just captured.
    let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, capture.graph, 0) };
    check(made, "cuGraphInstantiateWithFlags", cuda.name())?;
    let work = CudaGraph {
        exec,
        cuda: cuda.clone(),
    };
    // SAFETY: both live; the first launch need not upload then.
    let result = unsafe { sys::cuGraphUpload(exec, stream.raw()) };
    check(result, "cuGraphUpload", cuda.name())?;
    Ok(work)
}

impl CudaGraph {
    /// # Safety
    /// As for [`Backend::launch_graph`](crate::Backend::launch_graph).
    pub(super) unsafe fn launch(&self, stream: &CudaStream) -> Result<()> {
        self.cuda.bind()?;
        // SAFETY: both live, and what was captured, by the caller. The driver orders launches of one graph.
        let result = unsafe { sys::cuGraphLaunch(self.exec, stream.raw()) };
        check(result, "cuGraphLaunch", self.cuda.name())
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // SAFETY: instantiated once and destroyed once; the driver frees it after the launches in flight.
        let result = unsafe { sys::cuGraphExecDestroy(self.exec) };
        check_in_drop(result, "cuGraphExecDestroy", self.cuda.name());
    }
}
