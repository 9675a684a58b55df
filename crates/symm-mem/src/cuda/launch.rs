//! Device code: loading modules and launching kernels.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys;
use parking_lot::Mutex;

use super::Cuda;
use super::driver::{check, check_in_drop};
use super::function::driver_functions;
use super::stream::{CudaStream, may_follow_early};
use crate::error::{Error, Result};

/// Device code embedded in a crate, by [`device_image!`](crate::device_image) or [`Image::new`]. Empty parts
/// were not built: the feature `nvcc` of that crate is off.
#[derive(Debug)]
pub struct Image {
    name: &'static str,
    sm_90a: &'static [u8],
    ptx: &'static [u8],
}

impl Image {
    /// An image, called `name` in messages: machine code for sm_90a, which runs on compute capability 9.0
    /// only, and PTX for compute_80 or another, which the driver compiles for any later device. Either may be
    /// empty.
    ///
    /// The driver trusts the lengths inside both, so safe code must not pass it arbitrary bytes:
    ///
    /// ```compile_fail,E0133
    /// # use warpweave_symm_mem::cuda::Image;
    /// static CODE: Image = Image::new("mine", b"no cubin", &[]);
    /// ```
    ///
    /// # Safety
    /// - `sm_90a` is empty or a complete cubin made by nvcc.
    /// - `ptx` is empty or PTX with a terminating zero byte.
    pub const unsafe fn new(name: &'static str, sm_90a: &'static [u8], ptx: &'static [u8]) -> Self {
        Image { name, sm_90a, ptx }
    }

    /// Name in messages: the source file without its extension.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The machine code for sm_90a; empty if it was not built.
    pub fn sm_90a(&self) -> &'static [u8] {
        self.sm_90a
    }

    /// The PTX; empty if it was not built or there is none.
    pub fn ptx(&self) -> &'static [u8] {
        self.ptx
    }
}

/// The [`Image`](crate::cuda::Image) of `cuda/$name.cu`, which the calling crate's build script compiled with
/// `warpweave-nvcc`. Empty without that crate's feature `nvcc`.
#[macro_export]
macro_rules! device_image {
    ($name:literal, sm_90a) => {{
        const NAME: &str = $name;
    const CUBIN: &[u8] = $crate::device_image!(@code $name, ".sm_90a.cubin", "");
        // SAFETY: nvcc's complete output for the source, or nothing.
        unsafe { $crate::cuda::Image::new(NAME, CUBIN, &[]) }
    }};
    ($name:literal, sm_90a, $ptx:ident) => {{
        const NAME: &str = $name;
    const CUBIN: &[u8] = $crate::device_image!(@code $name, ".sm_90a.cubin", "");
        const PTX: &[u8] =
        $crate::device_image!(@code $name, concat!(".", stringify!($ptx), ".ptx"), "\0");
        // SAFETY: nvcc's complete output for the source, or nothing; a zero terminates the PTX.
        unsafe { $crate::cuda::Image::new(NAME, CUBIN, PTX) }
    }};
    (@code $name:literal, $ending:expr, "") => {{
        #[cfg(feature = "nvcc")]
        const CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/", $name, $ending));
        #[cfg(not(feature = "nvcc"))]
        const CODE: &[u8] = &[];
        CODE
    }};
    (@code $name:literal, $ending:expr, $zero:literal) => {{
        #[cfg(feature = "nvcc")]
        const CODE: &[u8] = concat!(
            include_str!(concat!(env!("OUT_DIR"), "/", $name, $ending)),
            $zero
        )
        .as_bytes();
        #[cfg(not(feature = "nvcc"))]
        const CODE: &[u8] = &[];
        CODE
    }};
}

driver_functions! {
    LOAD = c"cuFuncLoad"(sys::CUfunction) since "12.4";
}

/// Loaded device code. Clones refer to the same module.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    module: sys::CUmodule,
    name: &'static str,
    cuda: Cuda,
}

// SAFETY: modules may be used from any thread with their context current, which every use ensures.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A kernel of a loaded module. Keeps the module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    function: sys::CUfunction,
    name: &'static str,
    module: Module,
    limits: Arc<Mutex<Limits>>,
}

/// What has been raised in the function's attributes.
#[derive(Debug, Default)]
struct Limits {
    shared_bytes: u32,
    any_cluster: bool,
}

// SAFETY: functions may be used from any thread with their context current, which every use ensures.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The geometry of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads per block in x, y and z.
    pub block: (u32, u32, u32),
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Blocks per cluster, if the launch uses clusters.
    pub cluster: Option<(u32, u32, u32)>,
    /// Fail the launch unless all blocks can be resident at once.
    pub cooperative: bool,
    /// Programmatic dependent launch: the kernel may start before its predecessor in the stream has ended. It
    /// must wait (`griddepcontrol.wait`) before it touches memory that others write. Left out before Hopper,
    /// and in captures if what comes before is anything but one kernel, or the driver older than CUDA 12.3.
    pub programmatic: bool,
}

impl LaunchConfig {
    /// A one-dimensional grid of one-dimensional blocks.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        LaunchConfig {
            grid: (blocks, 1, 1),
            block: (threads, 1, 1),
            shared_bytes: 0,
            cluster: None,
            cooperative: false,
            programmatic: false,
        }
    }

    fn attributes(&self) -> Vec<sys::CUlaunchAttribute> {
        let mut attributes = Vec::with_capacity(3);
        if let Some((x, y, z)) = self.cluster {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z },
                },
            ));
        }
        if self.cooperative {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                sys::CUlaunchAttributeValue { cooperative: 1 },
            ));
        }
        if self.programmatic {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue {
                    programmaticStreamSerializationAllowed: 1,
                },
            ));
        }
        attributes
    }

    /// The driver's structure, which points to `attributes`.
    fn raw(
        &self,
        attributes: &mut [sys::CUlaunchAttribute],
        stream: sys::CUstream,
    ) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.block.0,
            blockDimY: self.block.1,
            blockDimZ: self.block.2,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }
}

impl Module {
    pub(super) fn load(cuda: &Cuda, image: &'static Image) -> Result<Self> {
        if image.sm_90a.is_empty() && image.ptx.is_empty() {
            return Err(Error::FeatureMissing {
                what: format!("the kernel `{}`", image.name),
                feature: "nvcc",
            });
        }
        let capability = cuda.compute_capability();
        let code = match capability {
            (9, 0) if !image.sm_90a.is_empty() => image.sm_90a,
            (8.., _) if !image.ptx.is_empty() => image.ptx,
            (major, minor) => {
                let needs = if image.ptx.is_empty() {
                    "9.0 (Hopper)"
                } else {
                    "8.0 or later"
                };
                return Err(Error::Unavailable {
                    what: format!("the kernel `{}` on {}", image.name, cuda.name()),
                    why: format!(
                        "it needs compute capability {needs}, the device has {major}.{minor}"
                    ),
                });
            }
        };
        cuda.bind()?;
        let mut module = std::ptr::null_mut();
        // Messages of the driver's PTX compiler.
        let mut log = vec![0u8; 4096];
        let mut options = [
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: `code` is a complete cubin or zero-terminated PTX and is static; the log buffer outlives
        // the call, and its size is passed in place of a pointer, as the option requires.
        let result = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                code.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        check(result, "cuModuleLoadDataEx", cuda.name()).map_err(|error| with_log(error, &log))?;
        Ok(Module(Arc::new(Loaded {
            module,
            name: image.name,
            cuda: cuda.without_modules(),
        })))
    }

    /// The kernel `name` of this module.
    pub fn function(&self, name: &'static str) -> Result<Function> {
        let cuda = &self.0.cuda;
        cuda.bind()?;
        let symbol = CString::new(name).map_err(|_| Error::InvalidArgument {
            what: "name of a kernel",
            why: "it has a zero byte".into(),
        })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded and the name is a C string.
        let result =
            unsafe { sys::cuModuleGetFunction(&mut function, self.0.module, symbol.as_ptr()) };
        let what = || format!("{} (kernel `{name}` of `{}`)", cuda.name(), self.0.name);
        check(result, "cuModuleGetFunction", &what())?;
        // The driver may load a kernel lazily at its first launch and wait for an idle device. The device
        // does not become idle while another kernel waits for a peer.
        if let Ok(load) = LOAD.get() {
            // SAFETY: a function of a loaded module.
            check(unsafe { load(function) }, "cuFuncLoad", &what())?;
        }
        Ok(Function {
            function,
            name,
            module: self.clone(),
            limits: Arc::default(),
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.cuda.bind_to_free();
        // SAFETY: loaded once and unloaded once, after its last function is dropped.
        let result = unsafe { sys::cuModuleUnload(self.module) };
        check_in_drop(result, "cuModuleUnload", self.cuda.name());
    }
}

impl Function {
    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn module(&self) -> &Module {
        &self.module
    }

    /// The largest number of blocks, with `threads` threads and `shared_bytes` of dynamic shared memory each,
    /// that the whole device can hold at once: the largest grid that may wait (invariant 6).
    pub fn max_resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let cuda = &self.module.0.cuda;
        cuda.bind()?;
        self.allow_shared(shared_bytes)?;
        let mut each = 0;
        // SAFETY: `each` is valid for a write and the function is loaded.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut each,
                self.function,
                threads as i32,
                shared_bytes as usize,
            )
        };
        check(
            result,
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            cuda.name(),
        )?;
        Ok(each as u32 * cuda.sms())
    }

    /// As [`Function::max_resident_blocks`] for the clusters of `config`, in blocks: the largest grid of
    /// clusters that may wait. Ignores the grid in `config`.
    pub fn max_resident_in_clusters(&self, config: LaunchConfig) -> Result<u32> {
        let Some((x, y, z)) = config.cluster else {
            let (x, y, z) = config.block;
            return self.max_resident_blocks(x * y * z, config.shared_bytes);
        };
        let cuda = &self.module.0.cuda;
        cuda.bind()?;
        self.allow_shared(config.shared_bytes)?;
        self.allow_cluster(x * y * z)?;
        let grid = (x * cuda.sms(), y, z);
        let config = LaunchConfig { grid, ..config };
        let mut attributes = config.attributes();
        let launch = config.raw(&mut attributes, std::ptr::null_mut());
        let mut clusters = 0;
        // SAFETY: the count is valid for a write, the function is loaded, and the attributes outlive the
        // call.
        let result =
            unsafe { sys::cuOccupancyMaxActiveClusters(&mut clusters, self.function, &launch) };
        check(result, "cuOccupancyMaxActiveClusters", cuda.name())?;
        Ok(clusters.max(0) as u32 * x * y * z)
    }

    /// Raises the limit on dynamic shared memory. By default it is 48 KiB less what is static.
    fn allow_shared(&self, bytes: u32) -> Result<()> {
        // Locked through the call, and never lowered, because launches of other threads rely on it.
        let mut limits = self.limits.lock();
        if bytes > limits.shared_bytes {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.raise(attribute, bytes as i32)?;
            limits.shared_bytes = bytes;
        }
        Ok(())
    }

    /// Allows clusters of more than the eight blocks that every device supports.
    fn allow_cluster(&self, blocks: u32) -> Result<()> {
        let mut limits = self.limits.lock();
        if blocks > 8 && !limits.any_cluster {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            self.raise(attribute, 1)?;
            limits.any_cluster = true;
        }
        Ok(())
    }

    fn raise(&self, attribute: sys::CUfunction_attribute, value: i32) -> Result<()> {
        let cuda = &self.module.0.cuda;
        cuda.bind()?;
        // SAFETY: the function is loaded.
        let result = unsafe { sys::cuFuncSetAttribute(self.function, attribute, value) };
        check(
            result,
            "cuFuncSetAttribute",
            &format!("{} (kernel `{}`)", cuda.name(), self.name),
        )
    }
}

impl Cuda {
    /// Launches `function` on `stream`.
    ///
    /// # Safety
    /// - `parameters` points to one value for each parameter of the kernel, of its type and layout.
    /// - All memory that the kernel accesses stays mapped until it has ended. No unordered work conflicts.
    pub unsafe fn launch(
        &self,
        stream: &CudaStream,
        function: &Function,
        config: LaunchConfig,
        parameters: &mut [*mut c_void],
    ) -> Result<()> {
        self.bind()?;
        function.allow_shared(config.shared_bytes)?;
        if let Some((x, y, z)) = config.cluster {
            function.allow_cluster(x.saturating_mul(y).saturating_mul(z))?;
        }
        let is_hopper = self.compute_capability() >= (9, 0);
        let config = LaunchConfig {
            programmatic: config.programmatic && is_hopper && may_follow_early(self, stream)?,
            ..config
        };
        let mut attributes = config.attributes();
        let launch = config.raw(&mut attributes, stream.raw());
        // SAFETY: the configuration lives through the call; the parameters are the caller's obligation.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &launch,
                function.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        match result {
            sys::CUresult::CUDA_SUCCESS => Ok(()),
            failed => check(
                failed,
                "cuLaunchKernelEx",
                &format!("{} (kernel `{}`)", self.name(), function.name),
            ),
        }
    }
}

/// Adds the log of the driver's PTX compiler to `error`.
fn with_log(mut error: Error, log: &[u8]) -> Error {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    if let (Error::Driver { hint, .. }, false) = (&mut error, text.is_empty()) {
        *hint = format!(
            "{hint}; its compiler says: {}",
            String::from_utf8_lossy(text).trim()
        );
    }
    error
}

fn attribute(
    id: sys::CUlaunchAttributeID,
    value: sys::CUlaunchAttributeValue,
) -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id,
        pad: [0; 4],
        value,
    }
}
