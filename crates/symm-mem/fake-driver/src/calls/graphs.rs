//! Captures and graphs.

use std::ffi::c_ulonglong;

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUresult as R, CUstream, CUstreamCaptureMode};

use super::put;
use crate::journal::{refuse, require};
use crate::state::lock;
use crate::state::streams::Exec;
use crate::work::run;

calls! {
    fn cuStreamBeginCapture_v2(stream: CUstream, _mode: CUstreamCaptureMode) {
        lock().begin_capture(stream as u64)
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) {
        let ended = lock().end_capture(stream as u64);
        // The capture ends in any case; without a graph, `graph` is set to null.
        let name = ended.as_ref().copied().unwrap_or(0);
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(graph, name as CUgraph)? };
        ended.map(drop)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        require(!mode.is_null(), R::CUDA_ERROR_INVALID_VALUE, "no mode")
    }

    fn cuGraphDestroy(graph: CUgraph) {
        match lock().graphs.remove(&(graph as u64)) {
            Some(_) => Ok(()),
            None => refuse(R::CUDA_ERROR_INVALID_VALUE, "no such graph, or it was destroyed before"),
        }
    }

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) {
        require(flags == 0, R::CUDA_ERROR_INVALID_VALUE, "flags must be 0")?;
        let mut driver = lock();
        let Some(graph) = driver.graphs.get(&(graph as u64)) else {
            return refuse(R::CUDA_ERROR_INVALID_VALUE, "no such graph");
        };
        let made = Exec { context: graph.context, work: graph.work.clone() };
        let name = driver.name();
        driver.execs.insert(name, made);
        // SAFETY: as above.
        unsafe { put(exec, name as CUgraphExec) }
    }

    fn cuGraphExecDestroy(exec: CUgraphExec) {
        match lock().execs.remove(&(exec as u64)) {
            Some(_) => Ok(()),
            None => refuse(R::CUDA_ERROR_INVALID_HANDLE, "no such graph, or it was destroyed before"),
        }
    }

    fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) {
        let driver = lock();
        driver.stream_context(stream as u64)?;
        let known = driver.execs.contains_key(&(exec as u64));
        require(known, R::CUDA_ERROR_INVALID_HANDLE, "no such instantiated graph")
    }

    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) {
        // SAFETY: as above.
        unsafe { run::replay(stream as u64, exec as u64) }
    }
}
