//! Streams and events.

use std::ffi::{c_int, c_uint};
use std::time::Instant;

use cudarc::driver::sys::{
    CUcontext, CUevent, CUevent_flags, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType,
    CUresult as R, CUstream, CUstreamCaptureStatus as C, cuuint64_t,
};

use super::put;
use crate::journal::{Outcome, refuse, require};
use crate::state::streams::{Capture, Event, Recorded, Stream};
use crate::state::work::{Key, Recording, Work};
use crate::state::{current, lock};
use crate::work::queue;

fn create() -> Outcome<u64> {
    let mut driver = lock();
    let context = driver.context()?.0;
    let name = driver.name();
    let stream = Stream {
        context,
        capture: None,
    };
    driver.streams.insert(name, stream);
    Ok(name)
}

/// The stream, which must not be in a capture.
fn looked_at(stream: CUstream, call: &str) -> Outcome<Key> {
    let mut driver = lock();
    let context = driver.stream_context(stream as u64)?;
    driver.refuse_in_capture(stream as u64, call)?;
    Ok((stream as u64, context))
}

/// The last recording of an event, if there was one outside of captures.
fn recording(event: CUevent) -> Outcome<Option<Recording>> {
    match &lock().event_mut(event as u64)?.recorded {
        Some(Recorded::At(recording)) => Ok(Some(recording.clone())),
        _ => Ok(None),
    }
}

/// Milliseconds between two events.
fn elapsed(from: CUevent, to: CUevent) -> Outcome<f32> {
    let time = |event: CUevent| -> Outcome<Instant> {
        let timed = lock().event_mut(event as u64)?.timed;
        let Some(recording) = recording(event)?.filter(|_| timed) else {
            return refuse(
                R::CUDA_ERROR_INVALID_HANDLE,
                "the event was not recorded, or without a time",
            );
        };
        match recording.get() {
            Some(time) => Ok(*time),
            None => refuse(
                R::CUDA_ERROR_NOT_READY,
                "the stream has not come to the event",
            ),
        }
    };
    let (from, to) = (time(from)?, time(to)?);
    Ok(to.saturating_duration_since(from).as_secs_f32() * 1e3)
}

calls! {
    fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) {
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(stream, create()? as CUstream) }
    }

    fn cuStreamCreateWithPriority(stream: *mut CUstream, _flags: c_uint, _priority: c_int) {
        // SAFETY: as above.
        unsafe { put(stream, create()? as CUstream) }
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        let mut driver = lock();
        let found = driver.streams.get(&(stream as u64));
        let Some(found) = found else {
            return refuse(R::CUDA_ERROR_INVALID_HANDLE, "no such stream, or it was destroyed before");
        };
        let capture = found.capture;
        let context = found.context;
        require(
            driver.contexts.contains_key(&context),
            R::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            "its context is gone, and the stream with it",
        )?;
        if let Some(capture) = capture.and_then(|id| driver.captures.get_mut(&id)) {
            capture.broken = true;
        }
        driver.streams.remove(&(stream as u64));
        Ok(())
    }

    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) {
        let of = lock().stream_context(stream as u64)?;
        // SAFETY: as above.
        unsafe { put(context, of as CUcontext) }
    }

    fn cuStreamQuery(stream: CUstream) {
        let key = looked_at(stream, "cuStreamQuery")?;
        let busy = lock().is_busy(key)?;
        require(!busy, R::CUDA_ERROR_NOT_READY, "there is work on the stream")
    }

    fn cuStreamSynchronize(stream: CUstream) {
        queue::drain(looked_at(stream, "cuStreamSynchronize")?)
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut C) {
        let driver = lock();
        driver.stream_context(stream as u64)?;
        let capture = driver.streams.get(&(stream as u64)).and_then(|s| s.capture);
        let answer = match capture.and_then(|id| driver.captures.get(&id)) {
            None => C::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.broken => C::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => C::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        };
        // SAFETY: as above.
        unsafe { put(status, answer) }
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: CUstream,
        status: *mut C,
        _id: *mut cuuint64_t,
        _graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode,
        _edges: *mut *const CUgraphEdgeData,
        count: *mut usize,
    ) {
        let mut driver = lock();
        driver.stream_context(stream as u64)?;
        let (answer, after) = match driver.capture_of(stream as u64) {
            None => (C::CU_STREAM_CAPTURE_STATUS_NONE, &[][..]),
            Some((_, capture)) => {
                let after = capture.after.get(&(stream as u64));
                (C::CU_STREAM_CAPTURE_STATUS_ACTIVE, after.map_or(&[][..], |nodes| nodes))
            }
        };
        // SAFETY: as above; the nodes stay where they are until the capture goes on.
        unsafe {
            put(status, answer)?;
            put(nodes, after.as_ptr().cast())?;
            put(count, after.len())
        }
    }

    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) {
        let driver = lock();
        let capture = driver.captures.get(&Capture::of_node(node as u64));
        let answer = match capture.and_then(|capture| capture.work_of(node as u64)) {
            None => return refuse(R::CUDA_ERROR_INVALID_VALUE, "no such node"),
            Some(Work::Kernel(_)) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            Some(Work::Fill { .. }) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            Some(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
        };
        // SAFETY: as above.
        unsafe { put(kind, answer) }
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        require(flags == 0, R::CUDA_ERROR_INVALID_VALUE, "flags must be 0")?;
        lock().wait_event(stream as u64, event as u64)
    }

    fn cuEventCreate(event: *mut CUevent, flags: c_uint) {
        let mut driver = lock();
        let context = driver.context()?.0;
        let name = driver.name();
        let timed = flags & CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint == 0;
        driver.events.insert(name, Event { context, timed, recorded: None });
        // SAFETY: as above.
        unsafe { put(event, name as CUevent) }
    }

    fn cuEventDestroy_v2(event: CUevent) {
        require(current() != 0, R::CUDA_ERROR_INVALID_CONTEXT, "no context is current")?;
        match lock().events.remove(&(event as u64)) {
            Some(_) => Ok(()),
            None => refuse(R::CUDA_ERROR_INVALID_HANDLE, "no such event, or it was destroyed before"),
        }
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        lock().record(event as u64, stream as u64)
    }

    fn cuEventQuery(event: CUevent) {
        let reached = recording(event)?.is_none_or(|recording| recording.get().is_some());
        require(reached, R::CUDA_ERROR_NOT_READY, "the stream has not come to the event")
    }

    fn cuEventSynchronize(event: CUevent) {
        if let Some(recording) = recording(event)? {
            queue::await_recording(&recording);
        }
        Ok(())
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: CUevent, to: CUevent) {
        // SAFETY: as above.
        unsafe { put(milliseconds, elapsed(from, to)?) }
    }
}

calls! {
    of_cuda_12

    fn cuEventElapsedTime(milliseconds: *mut f32, from: CUevent, to: CUevent) {
        // SAFETY: the caller's obligation.
        unsafe { put(milliseconds, elapsed(from, to)?) }
    }
}
