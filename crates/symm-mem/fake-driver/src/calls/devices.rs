//! Initialization, versions, names of errors, devices.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cudarc::driver::sys::{
    CUdevice, CUdevice_P2PAttribute as P, CUdevice_attribute as A, CUresult as R, CUuuid,
};

use super::put;
use crate::journal::{Outcome, require};
use crate::machine::DEVICE_BYTES;
use crate::state::lock;

/// Name and short meaning of an error code.
fn name(code: R) -> &'static CStr {
    match code {
        R::CUDA_SUCCESS => c"CUDA_SUCCESS",
        R::CUDA_ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        R::CUDA_ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        R::CUDA_ERROR_NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        R::CUDA_ERROR_NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        R::CUDA_ERROR_INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        R::CUDA_ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        R::CUDA_ERROR_INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        R::CUDA_ERROR_ILLEGAL_STATE => c"CUDA_ERROR_ILLEGAL_STATE",
        R::CUDA_ERROR_NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        R::CUDA_ERROR_NOT_READY => c"CUDA_ERROR_NOT_READY",
        R::CUDA_ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        R::CUDA_ERROR_NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        R::CUDA_ERROR_NOT_PERMITTED => c"CUDA_ERROR_NOT_PERMITTED",
        R::CUDA_ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => c"CUDA_ERROR_UNKNOWN",
    }
}

/// # Safety
/// `text` is null or valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: R, text: *mut *const c_char) -> R {
    // SAFETY: the caller's obligation.
    match unsafe { put(text, name(code).as_ptr()) } {
        Ok(()) => R::CUDA_SUCCESS,
        Err(refusal) => refusal.code,
    }
}

/// # Safety
/// As for `cuGetErrorName`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: R, text: *mut *const c_char) -> R {
    // SAFETY: the caller's obligation.
    unsafe { cuGetErrorName(code, text) }
}

calls! { before_init
    fn cuInit(flags: c_uint) {
        require(flags == 0, R::CUDA_ERROR_INVALID_VALUE, "flags must be 0")?;
        let mut driver = lock();
        require(driver.machine.devices > 0, R::CUDA_ERROR_NO_DEVICE, "there is no device")?;
        driver.initialized = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(version, 13000) }
    }
}

calls! {
    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's obligation, here and below.
        unsafe { put(count, lock().machine.devices) }
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        let found = lock().device(ordinal)?;
        // SAFETY: as above.
        unsafe { put(device, found) }
    }

    fn cuDeviceGetName(text: *mut c_char, bytes: c_int, device: CUdevice) {
        lock().device(device)?;
        let name = b"Warpweave Fake GPU";
        let room = usize::try_from(bytes).unwrap_or(0);
        require(room > 0 && !text.is_null(), R::CUDA_ERROR_INVALID_VALUE, "no room for the name")?;
        let length = name.len().min(room - 1);
        // SAFETY: as above, and the name and its zero fit into `room`.
        unsafe {
            text.copy_from_nonoverlapping(name.as_ptr().cast(), length);
            text.add(length).write(0);
        }
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) {
        lock().device(device)?;
        let mut bytes = [0; 16];
        bytes[0] = 0x57;
        bytes[15] = device as c_char;
        // SAFETY: as above.
        unsafe { put(uuid, CUuuid { bytes }) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        lock().device(device)?;
        // SAFETY: as above.
        unsafe { put(bytes, DEVICE_BYTES) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: A, device: CUdevice) {
        lock().device(device)?;
        // SAFETY: as above.
        unsafe { put(value, answer(attribute)) }
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice) {
        let value = peer_access(device, peer)?;
        // SAFETY: as above.
        unsafe { put(can, value) }
    }

    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: P, device: CUdevice, peer: CUdevice) {
        let access = peer_access(device, peer)?;
        let answer = match attribute {
            P::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            _ => access,
        };
        // SAFETY: as above.
        unsafe { put(value, answer) }
    }
}

fn peer_access(device: CUdevice, peer: CUdevice) -> Outcome<c_int> {
    let driver = lock();
    driver.device(device)?;
    driver.device(peer)?;
    Ok((driver.machine.peer && device != peer).into())
}

/// SMs of each device.
pub(super) const SMS: c_int = 132;

fn answer(attribute: A) -> c_int {
    let machine = &lock().machine;
    match attribute {
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => SMS,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 232_448,
        A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING => 1,
        A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => machine.vmm.into(),
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => {
            machine.descriptor.into()
        }
        A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => machine.fabric.into(),
        A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED => machine.multicast.into(),
        A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => machine.pools.into(),
        A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => 1,
        _ => 0,
    }
}
