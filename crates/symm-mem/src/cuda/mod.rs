//! The backend of NVIDIA GPUs: memory by CUDA's virtual memory management, shared between processes as descriptors.
//!
//! The driver is loaded at run time. A missing libcuda, device or capability is [`Error::Unavailable`].

pub(crate) mod driver;
mod graph;
pub mod launch;
mod memory;
mod multicast;
mod segment;
mod signal;
mod stream;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use parking_lot::Mutex;

use crate::backend::{Backend, BackendKind, DeviceInfo, DevicePtr, Priority, Support};
use crate::error::{Error, Result};
use crate::pad::PadView;

pub use graph::CudaWork;
pub use launch::{Function, Image, LaunchConfig, Module};
pub use memory::{CudaMapping, CudaMemory};
pub use multicast::CudaMulticast;
pub use segment::CudaSegment;
pub use stream::{CudaMark, CudaQueue};

use driver::check;

/// A rank's GPU. Clones name the same device, stream and modules.
#[derive(Clone, Debug)]
pub struct Cuda {
    device: Arc<Device>,
    shared: Option<Arc<Shared>>,
    timeout: Duration,
}

#[derive(Debug)]
struct Device {
    context: Arc<CudaContext>,
    info: DeviceInfo,
    granularity: usize,
    streams: Arc<stream::Registry>,
}

/// What is made once and used by all clones.
#[derive(Debug, Default)]
struct Shared {
    setup: Mutex<Option<CudaQueue>>,
    functions: Mutex<HashMap<(usize, &'static str), Function>>,
}

/// Ranks that are threads of one process would otherwise get in each other's way in the driver's first calls.
static INITIALIZE: Mutex<()> = Mutex::new(());

fn unavailable(why: impl Into<String>) -> Error {
    Error::Unavailable { what: "CUDA".into(), why: why.into() }
}

impl Cuda {
    /// Number of GPUs that this process may use.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if libcuda is missing or does not start.
    pub fn device_count() -> Result<usize> {
        if !driver::is_present() {
            return Err(unavailable(
                "libcuda is not on this machine; install the NVIDIA driver, or use the host backend",
            ));
        }
        if let Some(symbol) = driver::missing_symbol() {
            return Err(unavailable(format!(
                "the driver has no {}; it is older than CUDA 12.8, and the device code needs one for CUDA 13.0",
                symbol.to_string_lossy()
            )));
        }
        let _first = INITIALIZE.lock();
        result::init().map_err(|e| unavailable(format!("the driver does not start: {e}; is there a GPU, and is `nvidia-smi` well?")))?;
        let count = CudaContext::device_count().map_err(|e| unavailable(format!("counting devices: {e}")))?;
        Ok(count as usize)
    }

    /// The GPU `ordinal` with its primary context and a timeout of ten seconds.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver or no such device.
    pub fn new(ordinal: usize) -> Result<Self> {
        let count = Self::device_count()?;
        if ordinal >= count {
            return Err(unavailable(format!("device {ordinal} was asked for and this process sees {count}")));
        }
        let _first = INITIALIZE.lock();
        let context = CudaContext::new(ordinal)
            .map_err(|e| unavailable(format!("making the context of device {ordinal}: {e}")))?;
        Self::adopt(context)
    }

    /// The GPU of a context that the caller made with cudarc. cudarc's event tracking is turned off: it cannot see what
    /// peers write.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the driver is too old; what it answers when asked for the device's properties.
    pub fn adopt(context: Arc<CudaContext>) -> Result<Self> {
        if let Some(symbol) = driver::missing_symbol() {
            return Err(unavailable(format!("the driver has no {}; it is too old", symbol.to_string_lossy())));
        }
        // SAFETY: nothing of this crate relies on the tracking; see above.
        unsafe { context.disable_event_tracking() };
        let failed = |e| stream::driver_error(e, "asking for the properties of a device", "a GPU");
        let capability = context.compute_capability().map_err(failed)?;
        let attribute = |a| context.attribute(a).map_err(failed);
        let yes = |a, what: &str| -> Result<Support> {
            Ok(if attribute(a)? != 0 { Support::Yes } else { Support::No(what.into()) })
        };
        use sys::CUdevice_attribute as A;
        let shareable_memory = match yes(
            A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            "the device has no virtual memory management",
        )? {
            Support::Yes => yes(
                A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                "the driver does not share memory by descriptors",
            )?,
            no => no,
        };
        let multicast = multicast::support(|| {
            yes(A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, "the device or its fabric has no multicast")
        })?;
        let mut version = 0;
        // SAFETY: `version` is valid for a write.
        check(unsafe { sys::cuDriverGetVersion(&mut version) }, "cuDriverGetVersion", "a GPU")?;
        let info = DeviceInfo {
            name: format!("{} (device {})", context.name().map_err(failed)?, context.ordinal()),
            compute_capability: Some((capability.0 as u32, capability.1 as u32)),
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            memory: context.total_mem().map_err(failed)? as u64,
            driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            shareable_memory,
            multicast,
        };
        let bare = Device { context, info, granularity: 0, streams: Arc::default() };
        let mut cuda = Cuda {
            device: Arc::new(bare),
            shared: Some(Arc::default()),
            timeout: Duration::from_secs(10),
        };
        cuda.bind()?;
        let granularity = if cuda.device.info.shareable_memory.is_yes() {
            segment::granularity(&cuda)?.max(multicast::granularity(&cuda)?)
        } else {
            1
        };
        if let Some(device) = Arc::get_mut(&mut cuda.device) {
            device.granularity = granularity;
        }
        cuda.preload_signals()?;
        Ok(cuda)
    }

    /// A stream that the caller made with cudarc, on this device's context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the stream belongs to another context.
    pub fn adopt_stream(&self, stream: Arc<CudaStream>) -> Result<CudaQueue> {
        CudaQueue::adopt(self, stream)
    }

    /// The same device with another timeout for waits.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// cudarc's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.device.context
    }

    /// Makes this thread's driver calls go to the device.
    pub fn bind(&self) -> Result<()> {
        // Not by cudarc, whose call answers with whatever failed last in a drop.
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.context().cu_ctx()) }, "cuCtxSetCurrent", self.name())
    }

    /// As in messages.
    pub fn name(&self) -> &str {
        &self.device.info.name
    }

    /// Compute capability, (9, 0) for Hopper.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.device.info.compute_capability.unwrap_or((0, 0))
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.device.info.multiprocessors
    }

    /// Bytes of device memory that are free, of all processes.
    pub fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        let (free, _) = result::mem_get_info().map_err(|e| stream::driver_error(e, "cuMemGetInfo", self.name()))?;
        Ok(free)
    }

    /// The kernel `name` of `image`, loaded at the first use.
    ///
    /// # Errors
    /// [`Error::FeatureMissing`] if the image was not built, [`Error::Unavailable`] if the device cannot run it.
    pub fn function(&self, image: &'static Image, name: &'static str) -> Result<Function> {
        let key = (std::ptr::from_ref(image) as usize, name);
        let load = || Module::load(self, image)?.function(name);
        let Some(shared) = &self.shared else { return load() };
        let mut functions = shared.functions.lock();
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let function = match functions.iter().find(|((of, _), _)| *of == key.0) {
            Some((_, sibling)) => sibling.module().function(name)?,
            None => load()?,
        };
        functions.insert(key, function.clone());
        Ok(function)
    }

    /// The same device without the things made once, for values that those things own.
    fn without_modules(&self) -> Cuda {
        Cuda { device: self.device.clone(), shared: None, timeout: self.timeout }
    }

    fn out_of_memory(&self, bytes: usize, kind: &'static str) -> Error {
        let free = self.free_memory().map_or_else(|e| e.to_string(), |free| format!("{free} bytes are free"));
        Error::OutOfMemory { bytes, kind, device: self.name().into(), cause: free }
    }

    /// Writes zeros and returns when they are there.
    fn zero(&self, at: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.setup_stream()?;
        // SAFETY: the callers pass memory that they just made, which nothing else knows.
        unsafe { self.fill(&stream, at, 0, bytes)? };
        self.synchronize(&stream)
    }
}

impl Backend for Cuda {
    const KIND: BackendKind = BackendKind::Cuda;
    type Stream = CudaQueue;
    type Event = CudaMark;
    type Segment = CudaSegment;
    type Mapping = CudaMapping;
    type Memory = CudaMemory;
    type Multicast = CudaMulticast;
    type Graph = CudaWork;

    fn device(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn setup_stream(&self) -> Result<CudaQueue> {
        let Some(shared) = &self.shared else { return self.stream(Priority::Normal) };
        let mut setup = shared.setup.lock();
        match setup.as_ref() {
            Some(stream) => Ok(stream.clone()),
            None => Ok(setup.insert(self.stream(Priority::Normal)?).clone()),
        }
    }

    fn stream(&self, priority: Priority) -> Result<CudaQueue> {
        CudaQueue::new(self, priority)
    }

    fn synchronize(&self, stream: &CudaQueue) -> Result<()> {
        stream::synchronize(self, stream)
    }

    fn event(&self) -> Result<CudaMark> {
        CudaMark::new(self)
    }

    fn record(&self, event: &CudaMark, stream: &CudaQueue) -> Result<()> {
        event.record(self, stream)
    }

    fn wait_event(&self, stream: &CudaQueue, event: &CudaMark) -> Result<()> {
        event.block(self, stream)
    }

    fn elapsed(&self, from: &CudaMark, to: &CudaMark) -> Result<Duration> {
        from.elapsed(self, to)
    }

    fn granularity(&self) -> usize {
        self.device.granularity
    }

    fn create_segment(&self, bytes: usize) -> Result<CudaSegment> {
        CudaSegment::create(self, bytes)
    }

    fn export_segment(&self, segment: &CudaSegment) -> Result<OwnedFd> {
        segment.export()
    }

    fn import_segment(&self, fd: OwnedFd, bytes: usize) -> Result<CudaSegment> {
        CudaSegment::import(self, &fd, bytes)
    }

    fn map_segments(&self, segments: &[&CudaSegment]) -> Result<CudaMapping> {
        CudaMapping::new(self, segments)
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory> {
        CudaMemory::new(self, bytes)
    }

    unsafe fn copy(&self, stream: &CudaQueue, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's obligation.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, stream.raw()) };
        check(result, "cuMemcpyDtoDAsync", self.name())
    }

    unsafe fn fill(&self, stream: &CudaQueue, dst: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: the caller's obligation.
        let result = unsafe { sys::cuMemsetD8Async(dst.0, value, bytes, stream.raw()) };
        check(result, "cuMemsetD8Async", self.name())
    }

    unsafe fn upload(&self, stream: &CudaQueue, dst: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // The driver blocks for pageable memory, without a limit, until the stream has come to the copy.
        self.synchronize(stream)?;
        // SAFETY: the caller's obligation; `bytes` outlives the copy, since the stream is drained below.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(dst.0, bytes.as_ptr().cast(), bytes.len(), stream.raw()) };
        check(result, "cuMemcpyHtoDAsync", self.name())?;
        self.synchronize(stream)
    }

    unsafe fn download(&self, stream: &CudaQueue, src: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // As in `upload`.
        self.synchronize(stream)?;
        // SAFETY: the caller's obligation; `bytes` outlives the copy, since the stream is drained below.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), src.0, bytes.len(), stream.raw()) };
        check(result, "cuMemcpyDtoHAsync", self.name())?;
        self.synchronize(stream)
    }

    unsafe fn signal(&self, stream: &CudaQueue, pad: &PadView, slot: usize, peers: &[usize]) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_signal(stream, pad, slot, peers) }
    }

    unsafe fn wait(
        &self,
        stream: &CudaQueue,
        pad: &PadView,
        slot: usize,
        peers: &[usize],
        lag: u32,
    ) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_wait(stream, pad, slot, peers, lag) }
    }

    fn delay(&self, stream: &CudaQueue, time: Duration) -> Result<()> {
        self.launch_delay(stream, time)
    }

    fn capture(&self, stream: &CudaQueue, enqueue: impl FnOnce() -> Result<()>) -> Result<CudaWork> {
        graph::capture(self, stream, enqueue)
    }

    fn launch_graph(&self, graph: &CudaWork, stream: &CudaQueue) -> Result<()> {
        graph.launch(stream)
    }

    fn create_multicast(&self, bytes: usize, world: usize) -> Result<CudaMulticast> {
        CudaMulticast::create(self, bytes, world)
    }

    fn export_multicast(&self, multicast: &CudaMulticast) -> Result<OwnedFd> {
        multicast.export()
    }

    fn import_multicast(&self, fd: OwnedFd, bytes: usize, _world: usize) -> Result<CudaMulticast> {
        CudaMulticast::import(self, &fd, bytes)
    }

    fn join_multicast(&self, multicast: &CudaMulticast) -> Result<()> {
        multicast.join()
    }

    fn bind_multicast(&self, multicast: &CudaMulticast, segment: &CudaSegment) -> Result<()> {
        multicast.bind(segment)
    }

    fn map_multicast(&self, multicast: &CudaMulticast) -> Result<CudaMapping> {
        multicast.map()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_driver_gets_an_answer() {
        if driver::is_present() {
            return;
        }
        for error in [Cuda::new(0).unwrap_err(), Cuda::device_count().unwrap_err()] {
            assert!(error.is_unavailable(), "{error}");
            assert!(error.to_string().contains("libcuda is not on this machine"), "{error}");
        }
        assert!(!driver::has_symbol(c"cuMulticastCreate"));
    }
}
