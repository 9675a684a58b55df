//! The functions of NCCL that this crate calls, resolved once, each with the version that introduced it.
//!
//! Results are plain integers here: a library newer than the bindings may return codes that their enum lacks.
//! Buffers are `*mut` also where NCCL only reads them, which is the same to the callee.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::config::Config;
use super::version::{NcclVersion, OLDEST_NCCL};
use crate::error::{CommError, Result};

/// A function of NCCL, present if the loaded library is new enough.
pub(super) struct Function<F> {
    pub name: &'static str,
    since: NcclVersion,
    found: NcclVersion,
    at: Option<F>,
}

impl<F: Copy> Function<F> {
    /// # Safety
    /// `library` is NCCL, whose public header gives the symbol the type `F`, and stays loaded for as long as
    /// the function is called.
    unsafe fn resolve(
        library: &Library,
        name: &'static str,
        symbol: &[u8],
        since: NcclVersion,
        found: NcclVersion,
    ) -> Result<Self, String> {
        // By the version alone, which is the same on all ranks, and not by the symbols that happen to exist.
        let at = if found < since {
            None
        } else {
            // SAFETY: the caller vouches for the type.
            let found = unsafe { library.get::<F>(symbol) };
            Some(*found.map_err(|e| format!("it lacks {name}: {e}"))?)
        };
        Ok(Self {
            name,
            since,
            found,
            at,
        })
    }

    pub fn is_present(&self) -> bool {
        self.at.is_some()
    }

    /// # Errors
    /// [`CommError::NcclTooOld`].
    pub fn get(&self) -> Result<F> {
        self.at.ok_or(CommError::NcclTooOld {
            what: self.name,
            found: self.found,
            needed: self.since,
        })
    }
}

macro_rules! result {
    () => {
        c_int
    };
    ($result:ty) => {
        $result
    };
}

macro_rules! since {
    () => {
        OLDEST_NCCL
    };
    ($minor:literal) => {
        NcclVersion::of(2, $minor)
    };
}

macro_rules! table {
    ($($field:ident: $name:ident($($arg:ty),*) $(-> $result:ty)? $(, since 2 $minor:literal)?;)*) => {
        /// Pointers into a loaded library, which must outlive them.
        pub(super) struct Api {
            $(pub $field: Function<unsafe extern "C" fn($($arg),*) -> result!($($result)?)>,)*
        }

        impl Api {
            /// Resolves the functions of a library of this version.
            ///
            /// # Safety
            /// `library` is NCCL, and stays loaded for as long as the table is used.
            pub unsafe fn resolve(library: &Library, found: NcclVersion) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let symbol = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the caller vouches that this is NCCL; the types are those of its public
                        // header.
                        unsafe {
                            Function::resolve(library, stringify!($name), symbol, since!($($minor)?), found)?
                        }
                    },)*
                })
            }
        }
    };
}

/// NCCL's own handle of a communicator.
#[allow(non_camel_case_types)]
pub type ncclComm_t = *mut ncclComm;

/// The opaque target of [`ncclComm_t`].
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Debug)]
pub struct ncclComm {
    _opaque: [u8; 0],
}

/// NCCL's id of a new communicator, which rank 0 makes for all ranks.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ncclUniqueId {
    pub internal: [c_char; 128],
}

/// Where NCCL reads or writes.
type Buffer = *mut c_void;
/// A `cudaStream_t`, which is a `CUstream`.
type Stream = *mut c_void;

table! {
    get_unique_id: ncclGetUniqueId(*mut ncclUniqueId);
    init_rank_config: ncclCommInitRankConfig(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut Config);
    split: ncclCommSplit(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut Config);
    get_async_error: ncclCommGetAsyncError(ncclComm_t, *mut c_int);
    finalize: ncclCommFinalize(ncclComm_t);
    destroy: ncclCommDestroy(ncclComm_t);
    abort: ncclCommAbort(ncclComm_t);
    get_error_string: ncclGetErrorString(c_int) -> *const c_char;
    get_last_error: ncclGetLastError(ncclComm_t) -> *const c_char;
    group_start: ncclGroupStart();
    group_end: ncclGroupEnd();

    all_gather: ncclAllGather(Buffer, Buffer, usize, c_int, ncclComm_t, Stream);
    all_reduce: ncclAllReduce(Buffer, Buffer, usize, c_int, c_int, ncclComm_t, Stream);
    reduce_scatter: ncclReduceScatter(Buffer, Buffer, usize, c_int, c_int, ncclComm_t, Stream);
    broadcast: ncclBroadcast(Buffer, Buffer, usize, c_int, c_int, ncclComm_t, Stream);
    reduce: ncclReduce(Buffer, Buffer, usize, c_int, c_int, c_int, ncclComm_t, Stream);
    send: ncclSend(Buffer, usize, c_int, c_int, ncclComm_t, Stream);
    recv: ncclRecv(Buffer, usize, c_int, c_int, ncclComm_t, Stream);
    all_to_all: ncclAlltoAll(Buffer, Buffer, usize, c_int, ncclComm_t, Stream), since 2 28;
    gather: ncclGather(Buffer, Buffer, usize, c_int, c_int, ncclComm_t, Stream), since 2 28;
    scatter: ncclScatter(Buffer, Buffer, usize, c_int, c_int, ncclComm_t, Stream), since 2 28;

    mem_alloc: ncclMemAlloc(*mut Buffer, usize), since 2 19;
    mem_free: ncclMemFree(Buffer), since 2 19;
    register: ncclCommRegister(ncclComm_t, Buffer, usize, *mut *mut c_void), since 2 19;
    deregister: ncclCommDeregister(ncclComm_t, *mut c_void), since 2 19;
    window_register: ncclCommWindowRegister(ncclComm_t, Buffer, usize, *mut *mut c_void, c_int), since 2 27;
    window_deregister: ncclCommWindowDeregister(ncclComm_t, *mut c_void), since 2 27;
}

/// NCCL's result codes.
pub(super) const SUCCESS: c_int = 0;
pub(super) const INTERNAL_ERROR: c_int = 3;
pub(super) const INVALID_USAGE: c_int = 5;
pub(super) const REMOTE_ERROR: c_int = 6;
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
            "a system call failed inside NCCL, often for /dev/shm or the network interface; see \
             NCCL_DEBUG=WARN, NCCL_SOCKET_IFNAME"
        }
        4 | 5 => "do all ranks make the same calls, each on its own device?",
        6 => "another rank failed or went away; its own log says why",
        _ => "NCCL_DEBUG=WARN prints more",
    }
}
