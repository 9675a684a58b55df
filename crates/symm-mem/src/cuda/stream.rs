//! Streams and events.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{self, CudaContext};
use parking_lot::Mutex;

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::function::driver_functions;
use crate::backend::{Backend, Priority};
use crate::error::{Error, Result};

/// A CUDA stream, created by Warpweave or by the caller with cudarc. Clones refer to the same stream.
#[derive(Clone, Debug)]
pub struct CudaStream(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    tracked: Arc<Tracked>,
    registry: Arc<Registry>,
}

/// A stream and, while it is captured, an event at the end of its earlier work, because the driver cannot be
/// queried about a stream in a capture.
#[derive(Debug)]
struct Tracked {
    stream: Arc<driver::CudaStream>,
    earlier: Mutex<Option<End>>,
}

/// The streams of a context that may have work in flight: memory is unmapped only when they are idle.
#[derive(Debug, Default)]
pub(super) struct Registry {
    open: Mutex<Vec<Weak<Tracked>>>,
    /// Dropped streams whose work had not ended then.
    closing: Mutex<Vec<Arc<Tracked>>>,
    /// Number of captures in progress that this crate began.
    captures: AtomicUsize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let stream = &self.tracked.stream;
        // SAFETY: the stream keeps its context alive. If this fails, so does the query below.
        let _ = unsafe { sys::cuCtxSetCurrent(stream.context().cu_ctx()) };
        if !matches!(state(stream), Ok(State::Empty)) {
            self.registry.closing.lock().push(self.tracked.clone());
        }
    }
}

impl Registry {
    /// The registry of the context, shared by all who adopted it.
    pub(super) fn of(context: &CudaContext) -> Arc<Self> {
        /// By the context's address, which is unique while a registry lives, because its owners hold the
        /// context.
        static ALL: Mutex<Vec<(usize, Weak<Registry>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock();
        all.retain(|(_, registry)| registry.strong_count() > 0);
        let key = context.cu_ctx() as usize;
        let known = all.iter().find(|(of, _)| *of == key);
        known
            .and_then(|(_, registry)| registry.upgrade())
            .unwrap_or_else(|| {
                let fresh = Arc::default();
                all.push((key, Arc::downgrade(&fresh)));
                fresh
            })
    }

    fn add(self: &Arc<Self>, stream: Arc<driver::CudaStream>) -> CudaStream {
        self.closing
            .lock()
            .retain(|s| !matches!(state(&s.stream), Ok(State::Empty)));
        let tracked = Arc::new(Tracked {
            stream,
            earlier: Mutex::default(),
        });
        let mut open = self.open.lock();
        open.retain(|s| s.strong_count() > 0);
        open.push(Arc::downgrade(&tracked));
        CudaStream(Arc::new(Handle {
            tracked,
            registry: self.clone(),
        }))
    }

    fn streams(&self) -> Vec<Arc<Tracked>> {
        let open: Vec<_> = self.open.lock().iter().filter_map(Weak::upgrade).collect();
        let closing = self.closing.lock().clone();
        open.into_iter().chain(closing).collect()
    }
}

/// Alive during a capture: streams that join it first record where their earlier work ends.
#[derive(Debug)]
pub(super) struct Joining(Arc<Registry>);

impl Joining {
    /// Call this right before the capture of `stream` begins.
    pub(super) fn new(cuda: &Cuda, stream: &CudaStream) -> Result<Self> {
        let registry = &stream.0.registry;
        registry.captures.fetch_add(1, Ordering::Relaxed);
        let joining = Joining(registry.clone());
        stream.0.tracked.mark(cuda)?;
        Ok(joining)
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.captures.fetch_sub(1, Ordering::Relaxed);
        for tracked in self.0.streams() {
            let mut earlier = tracked.earlier.lock();
            // Another thread's capture may include it by now.
            if earlier.is_some() && !matches!(in_capture(&tracked.stream), Ok(true)) {
                earlier.take();
            }
        }
    }
}

impl Tracked {
    /// Records an event at the end of the stream's work, unless the stream is already in a capture.
    fn mark(&self, cuda: &Cuda) -> Result<()> {
        let mut earlier = self.earlier.lock();
        let captured = in_capture(&self.stream);
        if captured.or_else(|(result, call)| check(result, call, cuda.name()).map(|()| false))? {
            return Ok(());
        }
        *earlier = Some(End::of(cuda, &self.stream)?);
        Ok(())
    }

    /// The state of the stream; for a captured stream, of its earlier work. `None` if unknown, because this
    /// crate did not begin the capture.
    fn work(&self) -> Option<std::result::Result<State, Refused>> {
        let now = state(&self.stream);
        match now {
            Ok(State::Capturing) => self.earlier.lock().as_ref().map(End::state),
            now => Some(now),
        }
    }
}

/// An event at the end of a stream's work.
#[derive(Debug)]
struct End {
    event: sys::CUevent,
    // Not a device, which would keep the registry alive that may hold this.
    context: Arc<CudaContext>,
}

// SAFETY: the driver's events may be used from any thread; the context is bound before each use.
unsafe impl Send for End {}
// SAFETY: as above.
unsafe impl Sync for End {}

impl End {
    fn of(cuda: &Cuda, stream: &driver::CudaStream) -> Result<Self> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is valid for a write and the context is bound.
        let result = unsafe { sys::cuEventCreate(&mut event, flags) };
        check(result, "cuEventCreate", cuda.name())?;
        let end = End {
            event,
            context: cuda.context().clone(),
        };
        // SAFETY: both handles live.
        let result = unsafe { sys::cuEventRecord(event, stream.cu_stream()) };
        check(result, "cuEventRecord", cuda.name())?;
        Ok(end)
    }

    fn state(&self) -> std::result::Result<State, Refused> {
        // SAFETY: the event lives.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_SUCCESS => Ok(State::Empty),
            CUresult::CUDA_ERROR_NOT_READY => Ok(State::Busy),
            result => Err((result, "cuEventQuery")),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is valid for a write.
        let known = unsafe { sys::cuCtxGetCurrent(&mut current) };
        if known != CUresult::CUDA_SUCCESS || current != self.context.cu_ctx() {
            // SAFETY: the context lives; if this fails, so does the call below.
            let _ = unsafe { sys::cuCtxSetCurrent(self.context.cu_ctx()) };
        }
        // SAFETY: made by `of` and destroyed once; the driver keeps it until pending work has passed it.
        let result = unsafe { sys::cuEventDestroy_v2(self.event) };
        check_in_drop(result, "cuEventDestroy", "a GPU");
    }
}

impl CudaStream {
    pub(super) fn new(cuda: &Cuda, priority: Priority) -> Result<Self> {
        cuda.bind()?;
        let device = cuda.name();
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are valid for writes.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        check(result, "cuCtxGetStreamPriorityRange", device)?;
        let level = match priority {
            Priority::Normal => least,
            Priority::High => greatest,
        };
        let made = cuda.context().new_stream_with_priority(level);
        let stream = made.map_err(|e| driver_error(e, "cuStreamCreateWithPriority", device))?;
        Ok(cuda.device.streams.add(stream))
    }

    pub(super) fn adopt(cuda: &Cuda, stream: Arc<driver::CudaStream>) -> Result<Self> {
        if stream.context().cu_ctx() != cuda.context().cu_ctx() {
            return Err(Error::InvalidArgument {
                what: "stream",
                why: format!("it belongs to another context than that of {}", cuda.name()),
            });
        }
        cuda.bind()?;
        Ok(cuda.device.streams.add(stream))
    }

    /// The driver's handle, valid while `self` lives.
    pub fn raw(&self) -> sys::CUstream {
        self.0.tracked.stream.cu_stream()
    }

    /// The stream as cudarc's type.
    pub fn inner(&self) -> &Arc<driver::CudaStream> {
        &self.0.tracked.stream
    }
}

/// Converts an error of cudarc's `result` and `safe` layers.
pub(super) fn driver_error(
    e: cudarc::driver::DriverError,
    call: &'static str,
    device: &str,
) -> Error {
    match check(e.0, call, device) {
        Err(error) => error,
        Ok(()) => Error::Stream {
            device: device.into(),
            cause: format!("{call} failed without a code"),
        },
    }
}

enum State {
    Empty,
    Busy,
    Capturing,
}

/// The driver's error code and the call.
type Refused = (CUresult, &'static str);

fn in_capture(stream: &driver::CudaStream) -> std::result::Result<bool, Refused> {
    let mut capture = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream lives and `capture` is valid for a write.
    match unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut capture) } {
        CUresult::CUDA_SUCCESS => {
            Ok(capture != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
        }
        result => Err((result, "cuStreamIsCapturing")),
    }
}

/// The state of a stream. Checks for a capture first, because a query would break it.
fn state(stream: &driver::CudaStream) -> std::result::Result<State, Refused> {
    if in_capture(stream)? {
        return Ok(State::Capturing);
    }
    // SAFETY: the stream lives.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) } {
        CUresult::CUDA_SUCCESS => Ok(State::Empty),
        CUresult::CUDA_ERROR_NOT_READY => Ok(State::Busy),
        result => Err((result, "cuStreamQuery")),
    }
}

/// How long a stream may take to become idle. A kernel may compute for long, so this is ten times the timeout
/// of a wait plus a minute. A stream that holds only bounded waits is idle by then.
fn limit(cuda: &Cuda) -> Duration {
    cuda.timeout()
        .saturating_mul(10)
        .saturating_add(Duration::from_secs(60))
}

/// Pauses between two polls: first by spinning, since most waits are short, then by sleeping.
fn pause(waited: Duration) {
    if waited < Duration::from_micros(50) {
        std::hint::spin_loop();
    } else if waited < Duration::from_millis(2) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}

pub(super) fn is_capturing(cuda: &Cuda, stream: &CudaStream) -> Result<bool> {
    in_capture(stream.inner())
        .or_else(|(result, call)| check(result, call, cuda.name()).map(|()| false))
}

driver_functions! {
    CAPTURE_INFO = c"cuStreamGetCaptureInfo_v3"(
        sys::CUstream,
        *mut sys::CUstreamCaptureStatus,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut *const sys::CUgraphEdgeData,
        *mut usize
    ) since "12.3";
    NODE_TYPE = c"cuGraphNodeGetType"(sys::CUgraphNode, *mut sys::CUgraphNodeType) since "10.0";
}

/// Whether a kernel that is launched now may start before its predecessor has ended: always outside of
/// captures, where the driver sees to it. In one if an edge of the graph can say so: one from a kernel.
pub(super) fn may_follow_early(cuda: &Cuda, stream: &CudaStream) -> Result<bool> {
    if !is_capturing(cuda, stream)? {
        return Ok(true);
    }
    let (Ok(capture_info), Ok(node_type)) = (CAPTURE_INFO.get(), NODE_TYPE.get()) else {
        return Ok(false);
    };
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut count) = (0, std::ptr::null_mut(), 0);
    let (mut nodes, mut edges) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the stream lives, and all places are valid for a write.
    let result = unsafe {
        capture_info(
            stream.raw(),
            &mut status,
            &mut id,
            &mut graph,
            &mut nodes,
            &mut edges,
            &mut count,
        )
    };
    check(result, "cuStreamGetCaptureInfo", cuda.name())?;
    if count != 1 {
        return Ok(false);
    }
    let mut kind = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the capture, which goes on, has that many nodes there.
    let result = unsafe { node_type(*nodes, &mut kind) };
    check(result, "cuGraphNodeGetType", cuda.name())?;
    Ok(kind == sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL)
}

/// Waits until `stream` is idle, at most [`limit`].
pub(super) fn synchronize(cuda: &Cuda, stream: &CudaStream) -> Result<()> {
    let limit = limit(cuda);
    if cuda.drained_within(stream, limit)? {
        return Ok(());
    }
    Err(Error::Stream {
        device: cuda.name().into(),
        cause: format!("work is still running after {limit:?}"),
    })
}

impl Cuda {
    /// Waits until `stream` is idle, at most `limit`. Returns false on timeout.
    ///
    /// # Errors
    /// Errors of the work on the stream, as the driver reports them; [`Error::InvalidArgument`] during a
    /// capture.
    pub fn drained_within(&self, stream: &CudaStream, limit: Duration) -> Result<bool> {
        self.bind()?;
        let start = Instant::now();
        loop {
            match state(stream.inner()) {
                Ok(State::Empty) => return Ok(true),
                Ok(State::Busy) => {}
                Ok(State::Capturing) => {
                    return Err(Error::InvalidArgument {
                        what: "call during capture",
                        why: "`synchronize` cannot be captured in a graph".into(),
                    });
                }
                Err((result, call)) => {
                    check(result, call, self.name())?;
                }
            }
            let waited = start.elapsed();
            if waited > limit {
                return Ok(false);
            }
            pause(waited);
        }
    }
}

/// Waits until all streams of the context are idle, at most [`limit`]. Returns false on timeout, or if that
/// is unknown because a stream is in a capture that this crate did not begin: then memory of the streams
/// stays, and so does the device, whose own is freed without a limit. A capture itself runs nothing, and on a
/// lost context nothing runs.
pub(super) fn wait_idle(cuda: &Cuda) -> bool {
    let idle = are_idle(cuda, |_| {});
    if !idle {
        std::mem::forget(cuda.clone());
    }
    idle
}

/// As [`wait_idle`], and the first error of the driver, which counts as idle there.
pub(super) fn synchronize_all(cuda: &Cuda) -> Result<()> {
    cuda.bind()?;
    let mut first = None;
    let idle = are_idle(cuda, |refused| _ = first.get_or_insert(refused));
    if let Some((result, call)) = first {
        check(result, call, cuda.name())?;
    }
    match idle {
        true => Ok(()),
        false => Err(Error::Stream {
            device: cuda.name().into(),
            cause: "work is still running, or a stream is in a capture of another library".into(),
        }),
    }
}

fn are_idle(cuda: &Cuda, mut refused: impl FnMut(Refused)) -> bool {
    let start = Instant::now();
    for tracked in cuda.device.streams.streams() {
        loop {
            match tracked.work() {
                Some(Ok(State::Busy)) => {}
                Some(Ok(_)) => break,
                Some(Err(error)) => {
                    refused(error);
                    break;
                }
                None => return false,
            }
            let waited = start.elapsed();
            if waited > limit(cuda) {
                return false;
            }
            pause(waited);
        }
    }
    true
}

driver_functions! {
    ELAPSED = c"cuEventElapsedTime_v2"(*mut f32, sys::CUevent, sys::CUevent) since "12.8";
    /// For older drivers; not in the bindings of CUDA 13.
    ELAPSED_BEFORE = c"cuEventElapsedTime"(*mut f32, sys::CUevent, sys::CUevent) since "2.0";
}

/// A CUDA event with timing.
#[derive(Debug)]
pub struct CudaEvent {
    event: sys::CUevent,
    cuda: Cuda,
}

// SAFETY: the driver's events may be used from any thread; the context is bound before each use.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    pub(super) fn new(cuda: &Cuda) -> Result<Self> {
        cuda.bind()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: `event` is valid for a write and the context is bound.
        let result = unsafe { sys::cuEventCreate(&mut event, flags) };
        check(result, "cuEventCreate", cuda.name())?;
        Ok(CudaEvent {
            event,
            cuda: cuda.without_modules(),
        })
    }

    pub(super) fn record(&self, cuda: &Cuda, stream: &CudaStream) -> Result<()> {
        cuda.bind()?;
        // SAFETY: both handles live.
        let result = unsafe { sys::cuEventRecord(self.event, stream.raw()) };
        check(result, "cuEventRecord", cuda.name())
    }

    pub(super) fn block(&self, cuda: &Cuda, stream: &CudaStream) -> Result<()> {
        cuda.bind()?;
        if stream.0.registry.captures.load(Ordering::Relaxed) > 0 {
            // The event may belong to a capture, which the stream then joins.
            stream.0.tracked.mark(cuda)?;
        }
        // SAFETY: both handles live.
        let result = unsafe { sys::cuStreamWaitEvent(stream.raw(), self.event, 0) };
        check(result, "cuStreamWaitEvent", cuda.name())
    }

    pub(super) fn elapsed(&self, cuda: &Cuda, to: &CudaEvent) -> Result<Duration> {
        cuda.bind()?;
        let mut milliseconds = 0.0f32;
        let elapsed = ELAPSED.get().or_else(|_| ELAPSED_BEFORE.get())?;
        // SAFETY: both events live; the driver refuses those that were not recorded or reached.
        let result = unsafe { elapsed(&mut milliseconds, self.event, to.event) };
        if let CUresult::CUDA_ERROR_NOT_READY | CUresult::CUDA_ERROR_INVALID_HANDLE = result {
            return Err(Error::InvalidArgument {
                what: "event",
                why: "elapsed time needs two events that were recorded and reached; synchronize first".into(),
            });
        }
        check(result, "cuEventElapsedTime", cuda.name())?;
        Ok(Duration::from_secs_f64(
            f64::from(milliseconds.max(0.0)) * 1e-3,
        ))
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // SAFETY: made by `new` and destroyed once; the driver keeps it until pending work has passed it.
        let result = unsafe { sys::cuEventDestroy_v2(self.event) };
        check_in_drop(result, "cuEventDestroy", self.cuda.name());
    }
}
