//! A GPU: opening it, adopting a context, querying capabilities.

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::{CudaContext, result, sys};
use parking_lot::Mutex;

use super::driver::{self, check, check_in_drop};
use super::function::driver_functions;
use super::launch::{Function, Image, Module};
use super::stream::{self, CudaStream};
use super::{Cuda, Device, function, multicast, segment};
use crate::backend::{Backend, DeviceInfo, DevicePtr, LONGEST_TIMEOUT, Support};
use crate::error::{Error, Result};

/// Serializes the driver's first calls of ranks that are threads of one process.
static INITIALIZE: Mutex<()> = Mutex::new(());

// Attributes by value, because older bindings lack them.
/// `CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED`, in the bindings since CUDA 12.1.
const MULTICAST: c_int = 132;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`, in the bindings since CUDA 12.3.
pub(super) const FABRIC_HANDLES: c_int = 128;

/// Whether the device has `attribute`. False if its driver does not know the attribute.
pub(super) fn has(context: &CudaContext, attribute: c_int) -> Result<bool> {
    driver_functions! {
        ATTRIBUTE = c"cuDeviceGetAttribute"(*mut c_int, c_int, sys::CUdevice) since "2.0";
    }
    let mut value = 0;
    // SAFETY: `value` is valid for a write.
    match unsafe { ATTRIBUTE.get()?(&mut value, attribute, context.cu_device()) } {
        sys::CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
        result => check(result, "cuDeviceGetAttribute", "a GPU").map(|()| value != 0),
    }
}

fn unavailable(why: impl Into<String>) -> Error {
    Error::Unavailable {
        what: "CUDA".into(),
        why: why.into(),
    }
}

/// The newest CUDA version that the driver supports, as `CUDA 13.0`.
fn driver_version() -> Result<String> {
    let mut version = 0;
    // SAFETY: `version` is valid for a write.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(result, "cuDriverGetVersion", "a GPU")?;
    Ok(format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
}

impl Cuda {
    /// Number of GPUs that this process may use.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if libcuda is missing or does not start.
    pub fn device_count() -> Result<usize> {
        if !function::is_driver_present() {
            return Err(unavailable(
                "libcuda is not on this machine; install the NVIDIA driver, or use the host backend",
            ));
        }
        if let Some(symbol) = driver::missing_symbol() {
            return Err(unavailable(format!(
                "the driver has no {}; it is older than CUDA 12.0",
                symbol.to_string_lossy()
            )));
        }
        let _first = INITIALIZE.lock();
        result::init().map_err(|e| {
            unavailable(format!(
                "the driver does not start: {e}; is there a GPU, and is `nvidia-smi` well?"
            ))
        })?;
        let count = CudaContext::device_count()
            .map_err(|e| unavailable(format!("counting devices: {e}")))?;
        Ok(count as usize)
    }

    /// Name and driver of every GPU that this process may use, as in [`DeviceInfo`] but
    /// without the device's number.
    ///
    /// # Errors
    /// As [`Cuda::device_count`]; errors of the driver.
    pub fn installed() -> Result<Vec<(String, String)>> {
        let devices = 0..Self::device_count()?;
        let driver = driver_version()?;
        let installed = devices.map(|ordinal| {
            let failed = |e| stream::driver_error(e, "asking for the name of a device", "a GPU");
            let device = result::device::get(ordinal as i32).map_err(failed)?;
            let name = result::device::get_name(device).map_err(failed)?;
            Ok((name, driver.clone()))
        });
        installed.collect()
    }

    /// The GPU `ordinal` with its primary context and a timeout of ten seconds.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there is no driver or no such device.
    pub fn new(ordinal: usize) -> Result<Self> {
        let count = Self::device_count()?;
        if ordinal >= count {
            return Err(unavailable(format!(
                "device {ordinal} was asked for and this process sees {count}"
            )));
        }
        let _first = INITIALIZE.lock();
        let context = CudaContext::new(ordinal)
            .map_err(|e| unavailable(format!("making the context of device {ordinal}: {e}")))?;
        // Events at every use of a slice would cost time, and cannot see what peers write.
        // SAFETY: this context value is new, so nobody relies on its tracking.
        unsafe { context.disable_event_tracking() };
        Self::adopt(context)
    }

    /// The GPU of a context that the caller made with cudarc. The context is not changed. cudarc's event
    /// tracking, if enabled, sees neither this crate's work nor writes by peers: order cudarc's work on other
    /// streams after those by events. If the context has only its default stream, creating the first other
    /// one waits for all work of the context.
    ///
    /// Memory is freed after the work of all streams that any value over this context created or adopted.
    /// While a stream is in a capture that [`Backend::capture`] did not begin, its earlier work cannot be
    /// queried: memory dropped during that time is leaked.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the driver is too old; errors of the driver when querying the device.
    pub fn adopt(context: Arc<CudaContext>) -> Result<Self> {
        if let Some(symbol) = driver::missing_symbol() {
            return Err(unavailable(format!(
                "the driver has no {}; it is too old",
                symbol.to_string_lossy()
            )));
        }
        let failed = |e| stream::driver_error(e, "asking for the properties of a device", "a GPU");
        let capability = context.compute_capability().map_err(failed)?;
        let attribute = |a| context.attribute(a).map_err(failed);
        let yes = |a, what: &str| -> Result<Support> {
            Ok(if attribute(a)? != 0 {
                Support::Yes
            } else {
                Support::No(what.into())
            })
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
            Ok(if has(&context, MULTICAST)? {
                Support::Yes
            } else {
                Support::No("the device or its fabric has no multicast".into())
            })
        })?;
        let info = DeviceInfo {
            name: format!(
                "{} (device {})",
                context.name().map_err(failed)?,
                context.ordinal()
            ),
            compute_capability: Some((capability.0 as u32, capability.1 as u32)),
            sms: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            memory: context.total_mem().map_err(failed)? as u64,
            driver: driver_version()?,
            shareable_memory,
            multicast,
        };
        let bare = Device {
            streams: stream::Registry::of(&context),
            context,
            info,
            granularity: 0,
            fabric: OnceLock::new(),
            stop: Mutex::default(),
        };
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

    /// Adopts a stream of this device's context that the caller made with cudarc.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the stream belongs to another context.
    pub fn adopt_stream(&self, stream: Arc<cudarc::driver::CudaStream>) -> Result<CudaStream> {
        CudaStream::adopt(self, stream)
    }

    /// The same device with another timeout for waits. At most [`LONGEST_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(LONGEST_TIMEOUT);
        self
    }

    /// cudarc's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.device.context
    }

    /// Makes the device's context current in this thread.
    pub fn bind(&self) -> Result<()> {
        // Not through cudarc, whose call returns the error of an earlier drop.
        // SAFETY: the context lives as long as `self`.
        let result = unsafe { sys::cuCtxSetCurrent(self.context().cu_ctx()) };
        check(result, "cuCtxSetCurrent", self.name())
    }

    /// [`Cuda::bind`] for a drop, which continues if it fails: the handle or address to free is valid in any
    /// context, and a lost context reports its own errors.
    pub(super) fn bind_to_free(&self) {
        // SAFETY: as in `bind`.
        let result = unsafe { sys::cuCtxSetCurrent(self.context().cu_ctx()) };
        check_in_drop(result, "cuCtxSetCurrent", self.name());
    }

    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.device.info.name
    }

    /// Compute capability, (9, 0) for Hopper.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.device.info.compute_capability.unwrap_or((0, 0))
    }

    /// Streaming multiprocessors (SMs).
    pub fn sms(&self) -> u32 {
        self.device.info.sms
    }

    /// Bytes of device memory that are free, across all processes.
    pub fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        let (free, _) = result::mem_get_info()
            .map_err(|e| stream::driver_error(e, "cuMemGetInfo", self.name()))?;
        Ok(free)
    }

    /// The kernel `name` of `image`, loaded on first use.
    ///
    /// # Errors
    /// [`Error::FeatureMissing`] if the image was not built, [`Error::Unavailable`] if the device cannot run
    /// it.
    pub fn function(&self, image: &'static Image, name: &'static str) -> Result<Function> {
        let key = (std::ptr::from_ref(image) as usize, name);
        let load = || Module::load(self, image)?.function(name);
        let Some(shared) = &self.shared else {
            return load();
        };
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

    /// The same device without cached modules, for values that the cache owns.
    pub(super) fn without_modules(&self) -> Cuda {
        Cuda {
            device: self.device.clone(),
            shared: None,
            timeout: self.timeout,
        }
    }

    pub(super) fn out_of_memory(&self, bytes: usize, kind: &'static str) -> Error {
        let free = self
            .free_memory()
            .map_or_else(|e| e.to_string(), |free| format!("{free} bytes are free"));
        Error::OutOfMemory {
            bytes,
            kind,
            device: self.name().into(),
            cause: free,
        }
    }

    /// Writes zeros and returns when they are in memory.
    pub(super) fn zero(&self, at: DevicePtr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.setup_stream()?;
        // SAFETY: the callers pass memory that they just made, which nothing else knows.
        unsafe { self.fill(&stream, at, 0, bytes)? };
        self.synchronize(&stream)
    }
}
