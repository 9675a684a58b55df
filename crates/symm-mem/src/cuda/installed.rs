//! What GPUs there are, without a context on any.

use cudarc::driver::{result, sys};

use super::Cuda;
use super::driver::check;
use super::stream::driver_error;
use crate::error::Result;

impl Cuda {
    /// Name and driver of every GPU that this process may use, as [`DeviceInfo`](crate::DeviceInfo) has them,
    /// less the device's number.
    ///
    /// # Errors
    /// As [`Cuda::device_count`]; what the driver reports.
    pub fn installed() -> Result<Vec<(String, String)>> {
        let devices = 0..Self::device_count()?;
        let driver = driver_version()?;
        let installed = devices.map(|ordinal| {
            let failed = |e| driver_error(e, "asking for the name of a device", "a GPU");
            let device = result::device::get(ordinal as i32).map_err(failed)?;
            let name = result::device::get_name(device).map_err(failed)?;
            Ok((name, driver.clone()))
        });
        installed.collect()
    }
}

/// Version of CUDA up to which the driver goes, as `CUDA 13.0`.
pub(super) fn driver_version() -> Result<String> {
    let mut version = 0;
    // SAFETY: `version` is valid for a write.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    check(result, "cuDriverGetVersion", "a GPU")?;
    Ok(format!("CUDA {}.{}", version / 1000, version % 1000 / 10))
}
