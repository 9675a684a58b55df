//! Checked driver calls: a code becomes an [`Error::Driver`] that names the call, the device and what to do.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use crate::error::{Error, Result};

/// Turns the result of the driver function `call` into an error of `device`.
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
        // A process that is ending takes the context along before its values.
        if result != CUresult::CUDA_ERROR_DEINITIALIZED {
            tracing::error!(%error, "while freeing");
        }
    }
}

fn name(result: CUresult) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the driver is loaded, since it gave a result; it points `text` to a constant of its own or leaves it null.
    let known = unsafe { sys::cuGetErrorName(result, &mut text) } == CUresult::CUDA_SUCCESS;
    if !known || text.is_null() {
        return "an unknown error".into();
    }
    // SAFETY: a constant C string of the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn hint(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "use smaller shapes or free memory on the device",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX => {
            "the device code was not built for this device; build with an nvcc that knows it"
        }
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver is older than the nvcc that built the code; use the pinned nvcc of `cargo xtask setup`"
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

/// Whether libcuda is on this machine. cudarc panics when a call finds it missing, so this comes first.
pub(crate) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading the driver runs its initialisers, which is what using it means.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// Whether the loaded driver has `symbol`. cudarc panics when a call finds its symbol missing, so functions that are
/// newer than the oldest supported driver are asked for first.
pub(crate) fn has_symbol(symbol: &CStr) -> bool {
    // SAFETY: the symbol is looked up, never called.
    is_present() && unsafe { sys::culib().get::<*const ()>(symbol.to_bytes_with_nul()) }.is_ok()
}
