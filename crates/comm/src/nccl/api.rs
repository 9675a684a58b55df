//! The functions of NCCL that this crate calls, resolved once.
//!
//! Results are plain integers here: a library newer than the bindings may return codes that their enum lacks.

use std::ffi::{c_char, c_int, c_void};

use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};
use libloading::Library;

macro_rules! table {
    ($($field:ident: $symbol:literal fn($($arg:ty),*) -> $result:ty;)*) => {
        /// Pointers into a loaded library, which must outlive them.
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl Api {
            /// Resolves every symbol.
            ///
            /// # Safety
            /// `library` is NCCL, and stays loaded for as long as the table is used.
            pub unsafe fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the caller vouches that this is NCCL, whose public header gives the symbol this type.
                    $($field: unsafe { *library.get($symbol)? },)*
                })
            }
        }
    };
}

table! {
    get_unique_id: b"ncclGetUniqueId" fn(*mut ncclUniqueId) -> c_int;
    init_rank_config: b"ncclCommInitRankConfig" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> c_int;
    split: b"ncclCommSplit" fn(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> c_int;
    get_async_error: b"ncclCommGetAsyncError" fn(ncclComm_t, *mut c_int) -> c_int;
    finalize: b"ncclCommFinalize" fn(ncclComm_t) -> c_int;
    destroy: b"ncclCommDestroy" fn(ncclComm_t) -> c_int;
    abort: b"ncclCommAbort" fn(ncclComm_t) -> c_int;
    get_error_string: b"ncclGetErrorString" fn(c_int) -> *const c_char;
    get_last_error: b"ncclGetLastError" fn(ncclComm_t) -> *const c_char;
    group_start: b"ncclGroupStart" fn() -> c_int;
    group_end: b"ncclGroupEnd" fn() -> c_int;
    all_gather: b"ncclAllGather" fn(*const c_void, *mut c_void, usize, c_int, ncclComm_t, *mut c_void) -> c_int;
    all_reduce: b"ncclAllReduce" fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    reduce_scatter: b"ncclReduceScatter" fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    broadcast: b"ncclBroadcast" fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    send: b"ncclSend" fn(*const c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
    recv: b"ncclRecv" fn(*mut c_void, usize, c_int, c_int, ncclComm_t, *mut c_void) -> c_int;
}

/// NCCL's result codes.
pub(super) const SUCCESS: c_int = 0;
pub(super) const IN_PROGRESS: c_int = 7;

pub(super) fn code_name(code: c_int) -> &'static str {
    match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        _ => "an unknown result",
    }
}

pub(super) fn hint(code: c_int) -> &'static str {
    match code {
        1 => "a CUDA call failed inside NCCL; NCCL_DEBUG=WARN prints which",
        2 => {
            "a system call failed inside NCCL, often for /dev/shm or the network interface; see NCCL_DEBUG=WARN, NCCL_SOCKET_IFNAME"
        }
        4 | 5 => "do all ranks make the same calls, each on its own device?",
        6 => "another rank failed or went away; its own log says why",
        _ => "NCCL_DEBUG=WARN prints more",
    }
}
