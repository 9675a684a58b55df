//! The fake driver itself refuses what a driver refuses. The other tests rely on that.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult as R};
use warpweave_fake_driver::Control;

const UNIT: usize = 2 << 20;

const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The result of one driver call.
///
/// The arguments of all calls are live locals or handles that the driver gave; wrong ones are what is tested,
/// and the fake driver looks each up.
macro_rules! answer {
    ($call:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: see above.
        unsafe { sys::$call($($argument),*) }
    };
}

macro_rules! refused {
    ($code:ident, $call:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(answer!($call($($argument),*)), R::$code, stringify!($call($($argument),*)))
    };
}

macro_rules! done {
    ($call:ident($($argument:expr),* $(,)?)) => {
        refused!(CUDA_SUCCESS, $call($($argument),*))
    };
}

mod multicast;
mod work;

pub use multicast::multicast_enforced;
pub use work::enforced_under_work;

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}

fn properties(device: i32, handles: sys::CUmemAllocationHandleType) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(device),
        win32HandleMetaData: null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn memory(device: i32) -> u64 {
    let mut handle = 0;
    done!(cuMemCreate(
        &mut handle,
        UNIT,
        &properties(device, DESCRIPTOR),
        0
    ));
    handle
}

fn addresses(bytes: usize) -> u64 {
    let mut address = 0;
    done!(cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
    address
}

fn access(device: i32) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

fn context(device: i32) {
    let mut context = null_mut();
    done!(cuDevicePrimaryCtxRetain(&mut context, device));
    done!(cuCtxSetCurrent(context));
}

fn read(at: u64) -> R {
    let mut byte = 0u8;
    answer!(cuMemcpyDtoHAsync_v2(
        (&raw mut byte).cast(),
        at,
        1,
        null_mut()
    ))
}

fn write(at: u64) -> R {
    let byte = 7u8;
    answer!(cuMemcpyHtoDAsync_v2(
        at,
        (&raw const byte).cast(),
        1,
        null_mut()
    ))
}

pub fn enforced(driver: &Control) {
    let mut address = 0;
    refused!(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&mut address, 8));
    done!(cuInit(0));
    refused!(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&mut address, 8));
    context(0);
    virtual_memory();
    allocations();
    captures();
    modules();
    assert_eq!(driver.live(), ["context of device 0, retained 1 times"]);

    driver.restart(None);
    let mut stream = null_mut();
    done!(cuStreamCreate(&mut stream, 0));
    done!(cuDevicePrimaryCtxRelease_v2(0));
    assert!(
        driver.faults()[0].contains("a context ends with 1 streams"),
        "{:?}",
        driver.faults()
    );
    refused!(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamQuery(stream));
    refused!(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    driver.wipe();
    assert_eq!(driver.live(), [""; 0]);
}

fn virtual_memory() {
    let mut handle = 0;
    let prop = properties(0, DESCRIPTOR);
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemCreate(&mut handle, 100, &prop, 0)
    );
    refused!(
        CUDA_ERROR_INVALID_DEVICE,
        cuMemCreate(&mut handle, UNIT, &properties(9, DESCRIPTOR), 0)
    );
    refused!(
        CUDA_ERROR_OUT_OF_MEMORY,
        cuMemCreate(&mut handle, 1 << 45, &prop, 0)
    );
    let handle = memory(0);
    let base = addresses(2 * UNIT);
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemSetAccess(base, UNIT, &access(0), 1)
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemMap(base + 4096, UNIT, 0, handle, 0)
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemMap(base + 2 * UNIT as u64, UNIT, 0, handle, 0)
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemMap(base, 2 * UNIT, 0, handle, 0)
    );
    refused!(CUDA_ERROR_INVALID_HANDLE, cuMemMap(base, UNIT, 0, 1, 0));
    done!(cuMemMap(base, UNIT, 0, handle, 0));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemMap(base, UNIT, 0, handle, 0));
    assert_eq!(
        write(base),
        R::CUDA_ERROR_ILLEGAL_ADDRESS,
        "no access was given"
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemSetAccess(base, 2 * UNIT, &access(0), 1)
    );
    done!(cuMemSetAccess(base, UNIT, &access(0), 1));
    done!(cuMemRelease(handle));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuMemRelease(handle));
    let mut dirt = 0u8;
    done!(cuMemcpyDtoHAsync_v2(
        (&raw mut dirt).cast(),
        base,
        1,
        null_mut()
    ));
    assert_ne!(dirt, 0, "the driver does not promise zeros");
    assert_eq!(write(base), R::CUDA_SUCCESS, "a mapping keeps the memory");
    assert_eq!(
        write(base + UNIT as u64),
        R::CUDA_ERROR_ILLEGAL_ADDRESS,
        "there is nothing after it"
    );
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 2 * UNIT));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(base, 2 * UNIT));
    done!(cuMemUnmap(base, UNIT));
    assert_eq!(read(base), R::CUDA_ERROR_ILLEGAL_ADDRESS, "unmapped");
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, UNIT));
    done!(cuMemAddressFree(base, 2 * UNIT));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(base, 2 * UNIT));

    let mut private = 0;
    let none = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    done!(cuMemCreate(&mut private, UNIT, &properties(0, none), 0));
    let mut fd = -1i32;
    let to = (&raw mut fd).cast();
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemExportToShareableHandle(to, private, DESCRIPTOR, 0)
    );
    done!(cuMemRelease(private));
    let other = File::open("/dev/null").unwrap();
    let mut imported = 0;
    for fd in [other.as_raw_fd(), 9999] {
        let fd = fd as usize as *mut c_void;
        refused!(
            CUDA_ERROR_INVALID_VALUE,
            cuMemImportFromShareableHandle(&mut imported, fd, DESCRIPTOR)
        );
    }
}

fn allocations() {
    let mut address = 0;
    done!(cuMemAlloc_v2(&mut address, 5000));
    assert_eq!(write(address + 4999), R::CUDA_SUCCESS);
    assert_eq!(write(address + 5000), R::CUDA_ERROR_ILLEGAL_ADDRESS);
    let mut handle = sys::CUipcMemHandle_st { reserved: [0; 64] };
    let lazy = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut opened = 0;
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuIpcOpenMemHandle_v2(&mut opened, handle, lazy)
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuIpcGetMemHandle(&mut handle, address + 8)
    );
    done!(cuIpcGetMemHandle(&mut handle, address));
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuIpcOpenMemHandle_v2(&mut opened, handle, 0)
    );
    refused!(
        CUDA_ERROR_INVALID_CONTEXT,
        cuIpcOpenMemHandle_v2(&mut opened, handle, lazy)
    );
    refused!(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(address));
    let mut retained = 0;
    let at = address as *mut c_void;
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMemRetainAllocationHandle(&mut retained, at)
    );
    done!(cuMemFree_v2(address));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    assert_eq!(read(address), R::CUDA_ERROR_ILLEGAL_ADDRESS);

    // Two devices with peer access, once it is enabled.
    let mut own = null_mut();
    done!(cuCtxGetCurrent(&mut own));
    done!(cuMemAlloc_v2(&mut address, 8));
    context(1);
    assert_eq!(write(address), R::CUDA_ERROR_ILLEGAL_ADDRESS);
    done!(cuCtxEnablePeerAccess(own, 0));
    refused!(
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        cuCtxEnablePeerAccess(own, 0)
    );
    assert_eq!(write(address), R::CUDA_SUCCESS);
    done!(cuCtxSetCurrent(own));
    done!(cuMemFree_v2(address));
    done!(cuDevicePrimaryCtxRelease_v2(1));
}

fn captures() {
    let (mut stream, mut side, mut fork) = (null_mut(), null_mut(), null_mut());
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    done!(cuStreamCreate(&mut stream, 0));
    done!(cuStreamCreate(&mut side, 0));
    done!(cuEventCreate(&mut fork, 0));
    refused!(
        CUDA_ERROR_ILLEGAL_STATE,
        cuStreamEndCapture(stream, &mut graph)
    );
    done!(cuStreamBeginCapture_v2(stream, mode));
    refused!(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream));
    refused!(
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cuStreamEndCapture(stream, &mut graph)
    );
    // Forked, and not joined.
    done!(cuStreamBeginCapture_v2(stream, mode));
    done!(cuEventRecord(fork, stream));
    done!(cuStreamWaitEvent(side, fork, 0));
    refused!(
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cuStreamSynchronize(side)
    );
    refused!(
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cuStreamEndCapture(stream, &mut graph)
    );
    done!(cuStreamBeginCapture_v2(stream, mode));
    done!(cuEventRecord(fork, stream));
    done!(cuStreamWaitEvent(side, fork, 0));
    refused!(
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        cuStreamEndCapture(side, &mut graph)
    );
    refused!(
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        cuStreamEndCapture(stream, &mut graph)
    );
    assert!(graph.is_null());
    // The event is of a capture that has ended.
    refused!(CUDA_ERROR_CAPTURED_EVENT, cuStreamWaitEvent(side, fork, 0));
    let mut time = 0.0;
    refused!(
        CUDA_ERROR_INVALID_HANDLE,
        cuEventElapsedTime_v2(&mut time, fork, fork)
    );
    done!(cuStreamBeginCapture_v2(stream, mode));
    done!(cuStreamEndCapture(stream, &mut graph));
    done!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    done!(cuGraphDestroy(graph));
    refused!(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
    done!(cuGraphLaunch(exec, stream));
    done!(cuGraphExecDestroy(exec));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, stream));
    for stream in [stream, side] {
        done!(cuStreamDestroy_v2(stream));
        refused!(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(stream));
        refused!(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(stream));
    }
    done!(cuEventDestroy_v2(fork));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy_v2(fork));
}

fn modules() {
    let (mut module, mut function) = (null_mut(), null_mut());
    let code = c"kernel";
    done!(cuModuleLoadDataEx(
        &mut module,
        code.as_ptr().cast(),
        0,
        null_mut(),
        null_mut()
    ));
    refused!(
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetFunction(&mut function, module, c"other".as_ptr())
    );
    done!(cuModuleGetFunction(
        &mut function,
        module,
        c"kernel".as_ptr()
    ));
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuFuncSetAttribute(function, attribute, 300 << 10)
    );
    done!(cuModuleUnload(module));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuFuncLoad(function));
    refused!(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
}
