//! Streams and events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaStream};

use super::driver::{check, check_in_drop};
use super::Cuda;
use crate::backend::{Backend, Priority};
use crate::error::{Error, Result};

/// A CUDA stream: one of Warpweave's or one that a project made with cudarc.
#[derive(Clone, Debug)]
pub struct CudaQueue(Arc<CudaStream>);

impl CudaQueue {
    pub(super) fn new(cuda: &Cuda, priority: Priority) -> Result<Self> {
        cuda.bind()?;
        let device = cuda.name();
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are valid for writes.
        check(
            unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) },
            "cuCtxGetStreamPriorityRange",
            device,
        )?;
        let level = match priority {
            Priority::Normal => least,
            Priority::High => greatest,
        };
        let made = cuda.context().new_stream_with_priority(level);
        made.map(CudaQueue).map_err(|e| driver_error(e, "cuStreamCreateWithPriority", device))
    }

    /// A stream that the caller made with cudarc.
    pub fn adopt(stream: Arc<CudaStream>) -> Self {
        CudaQueue(stream)
    }

    /// The driver's handle, valid while `self` lives.
    pub fn raw(&self) -> sys::CUstream {
        self.0.cu_stream()
    }

    /// As cudarc knows it.
    pub fn inner(&self) -> &Arc<CudaStream> {
        &self.0
    }
}

/// An error of cudarc's `result` and `safe` layers.
pub(super) fn driver_error(e: cudarc::driver::DriverError, call: &'static str, device: &str) -> Error {
    match check(e.0, call, device) {
        Err(error) => error,
        Ok(()) => Error::Stream { device: device.into(), cause: format!("{call} failed without a code") },
    }
}

/// Waits until `stream` is empty. First by spinning, since most waits are short, then with naps. A kernel may compute
/// for long, so the limit is ten times `timeout` and a minute: a stream that holds only bounded waits is done by then.
pub(super) fn synchronize(cuda: &Cuda, stream: &CudaQueue) -> Result<()> {
    cuda.bind()?;
    let limit = cuda.timeout() * 10 + Duration::from_secs(60);
    let start = Instant::now();
    loop {
        // SAFETY: the stream lives as long as `stream`.
        match unsafe { sys::cuStreamQuery(stream.raw()) } {
            CUresult::CUDA_ERROR_NOT_READY => {}
            done => return check(done, "cuStreamQuery", cuda.name()),
        }
        let waited = start.elapsed();
        if waited > limit {
            return Err(Error::Stream {
                device: cuda.name().into(),
                cause: format!("work is still under way after {waited:?}"),
            });
        }
        if waited > Duration::from_millis(2) {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            std::hint::spin_loop();
        }
    }
}

/// A CUDA event with timing.
#[derive(Debug)]
pub struct CudaMark {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's events may be used from any thread; the context is bound before each use.
unsafe impl Send for CudaMark {}
// SAFETY: as above.
unsafe impl Sync for CudaMark {}

impl CudaMark {
    pub(super) fn new(cuda: &Cuda) -> Result<Self> {
        cuda.bind()?;
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: `event` is valid for a write and the context is bound.
        check(unsafe { sys::cuEventCreate(&mut event, flags) }, "cuEventCreate", cuda.name())?;
        Ok(CudaMark { event, context: cuda.context().clone() })
    }

    pub(super) fn record(&self, cuda: &Cuda, stream: &CudaQueue) -> Result<()> {
        cuda.bind()?;
        // SAFETY: both handles live.
        check(unsafe { sys::cuEventRecord(self.event, stream.raw()) }, "cuEventRecord", cuda.name())
    }

    pub(super) fn block(&self, cuda: &Cuda, stream: &CudaQueue) -> Result<()> {
        cuda.bind()?;
        // SAFETY: both handles live.
        let result = unsafe { sys::cuStreamWaitEvent(stream.raw(), self.event, 0) };
        check(result, "cuStreamWaitEvent", cuda.name())
    }

    pub(super) fn elapsed(&self, cuda: &Cuda, to: &CudaMark) -> Result<Duration> {
        cuda.bind()?;
        let mut milliseconds = 0.0f32;
        // SAFETY: both events live; the driver refuses those that were not recorded or reached.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, self.event, to.event) };
        check(result, "cuEventElapsedTime", cuda.name())?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) * 1e-3))
    }
}

impl Drop for CudaMark {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by `new` and destroyed once; the driver keeps it until pending work has passed it.
            check_in_drop(unsafe { sys::cuEventDestroy_v2(self.event) }, "cuEventDestroy", "a GPU");
        }
    }
}
