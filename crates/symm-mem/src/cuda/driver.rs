//! Checked driver calls: an error code becomes an [`Error::Driver`] with the call, the device and a hint.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use super::function::has_symbol;
use crate::error::{Error, Result};

/// Converts the result of the driver function `call` to an error of `device`.
pub(crate) fn check(result: CUresult, call: &'static str, device: &str) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver {
        call,
        code: result as i32,
        name: name(result),
        device: device.into(),
        hint: hint(result).into(),
    })
}

/// Logs a failure where no error can be returned.
pub(crate) fn check_in_drop(result: CUresult, call: &'static str, device: &str) {
    if let Err(error) = check(result, call, device) {
        // A process that exits destroys the context before its values.
        if result != CUresult::CUDA_ERROR_DEINITIALIZED {
            tracing::error!(%error, "while freeing");
        }
    }
}

fn name(result: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver is loaded, since it gave a result; it points `text` to a constant of its own or
    // leaves it null.
    let known = unsafe { sys::cuGetErrorName(result, &mut text) } == CUresult::CUDA_SUCCESS;
    if !known || text.is_null() {
        return "an unknown error".into();
    }
    // SAFETY: a constant C string of the driver.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

fn hint(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "use smaller shapes or free memory on the device",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX => {
            "the device code was not built for this device; build with an nvcc that knows it"
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver is older than the nvcc that built the code; use the pinned nvcc of `cargo xtask \
            setup`"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS => {
            "a kernel went wrong and the context is lost; run under compute-sanitizer"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY | CUresult::CUDA_ERROR_NOT_INITIALIZED => {
            "is the fabric manager running and the driver loaded?"
        }
        CUresult::CUDA_ERROR_NOT_PERMITTED | CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            "this device, driver or container does not allow it"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => "another process holds the device exclusively",
        _ => "see the CUDA driver API's description of the code",
    }
}

/// The first required function that the driver lacks.
pub(crate) fn missing_symbol() -> Option<&'static CStr> {
    static MISSING: OnceLock<Option<&'static CStr>> = OnceLock::new();
    *MISSING.get_or_init(|| REQUIRED.iter().copied().find(|symbol| !has_symbol(symbol)))
}

/// Every function that this backend calls, itself or through cudarc, without a look-up. CUDA 12.0 has all of
/// them. Newer ones are a [`DriverFunction`](super::DriverFunction) where they are used.
const REQUIRED: &[&CStr] = &[
    c"cuCtxEnablePeerAccess",
    c"cuCtxGetCurrent",
    c"cuCtxGetStreamPriorityRange",
    c"cuCtxSetCurrent",
    c"cuDeviceCanAccessPeer",
    c"cuDeviceGet",
    c"cuDeviceGetAttribute",
    c"cuDeviceGetCount",
    c"cuDeviceGetName",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxRetain",
    c"cuDeviceTotalMem_v2",
    c"cuDriverGetVersion",
    c"cuEventCreate",
    c"cuEventDestroy_v2",
    c"cuEventQuery",
    c"cuEventRecord",
    c"cuFuncSetAttribute",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuGraphDestroy",
    c"cuGraphExecDestroy",
    c"cuGraphInstantiateWithFlags",
    c"cuGraphLaunch",
    c"cuGraphUpload",
    c"cuInit",
    c"cuIpcCloseMemHandle",
    c"cuIpcGetMemHandle",
    c"cuIpcOpenMemHandle_v2",
    c"cuLaunchKernelEx",
    c"cuMemAddressFree",
    c"cuMemAddressReserve",
    c"cuMemAlloc_v2",
    c"cuMemCreate",
    c"cuMemExportToShareableHandle",
    c"cuMemFreeHost",
    c"cuMemFree_v2",
    c"cuMemGetAddressRange_v2",
    c"cuMemGetAllocationGranularity",
    c"cuMemGetInfo_v2",
    c"cuMemImportFromShareableHandle",
    c"cuMemMap",
    c"cuMemPoolSetAccess",
    c"cuMemRelease",
    c"cuMemRetainAllocationHandle",
    c"cuMemSetAccess",
    c"cuMemUnmap",
    c"cuMemcpyDtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemsetD8Async",
    c"cuModuleGetFunction",
    c"cuModuleLoadDataEx",
    c"cuModuleUnload",
    c"cuOccupancyMaxActiveBlocksPerMultiprocessor",
    c"cuOccupancyMaxActiveClusters",
    c"cuPointerGetAttribute",
    c"cuStreamBeginCapture_v2",
    c"cuStreamCreateWithPriority",
    c"cuStreamDestroy_v2",
    c"cuStreamEndCapture",
    c"cuStreamIsCapturing",
    c"cuStreamQuery",
    c"cuStreamWaitEvent",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Calling a symbol that was not looked up panics on an older driver.
    #[test]
    fn every_function_that_is_called_is_looked_up_first() {
        let sources = [
            include_str!("adopt.rs"),
            include_str!("batch.rs"),
            include_str!("device.rs"),
            include_str!("driver.rs"),
            include_str!("graph.rs"),
            include_str!("ipc.rs"),
            include_str!("launch.rs"),
            include_str!("memory.rs"),
            include_str!("mod.rs"),
            include_str!("multicast.rs"),
            include_str!("pointer.rs"),
            include_str!("segment.rs"),
            include_str!("signal.rs"),
            include_str!("stream.rs"),
        ];
        let mut calls = 0;
        for source in sources {
            for after in source.split("sys::cu").skip(1) {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                if !after[end..].starts_with('(')
                    || !after.starts_with(|c: char| c.is_ascii_uppercase())
                {
                    continue;
                }
                let name = format!("cu{}", &after[..end]);
                let known = REQUIRED
                    .iter()
                    .any(|symbol| symbol.to_bytes() == name.as_bytes());
                assert!(known, "{name} is called and never looked up");
                calls += 1;
            }
        }
        assert!(calls > 40, "the sources call {calls} functions?");
    }
}
