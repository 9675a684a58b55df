//! Device memory that NCCL allocates so that peers can reach it.

use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::result::ctx;
use cudarc::driver::sys::CUcontext;
use warpweave_symm_mem::cuda::is_driver_present;

use super::api::SUCCESS;
use super::comm::NcclComm;
use super::library::NcclLibrary;
use super::teardown::{Handle, TEARDOWN, bounded};
use crate::error::{CommError, Result};

/// Device memory of `ncclMemAlloc`, which windows may be registered on. From 2.19.
///
/// Dropping it frees it, which takes at most five seconds. Registrations share ownership, so it outlives
/// every communicator that knows it. Whoever enqueued work on it must make sure that no stream still uses it.
pub struct NcclMemory {
    library: Arc<NcclLibrary>,
    address: u64,
    bytes: usize,
    /// Current during the free, which runs on a thread without a context.
    context: Context,
}

impl fmt::Debug for NcclMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclMemory({:#x}, {} bytes)", self.address, self.bytes)
    }
}

struct Context(Option<CUcontext>);

// SAFETY: a context is not tied to a thread, and is only made current here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// This thread's context; `None` without a driver.
    fn current() -> Self {
        Self(
            is_driver_present()
                .then(|| ctx::get_current().ok().flatten())
                .flatten(),
        )
    }

    fn bind(&self) {
        if let Some(context) = self.0 {
            // SAFETY: it was current when the memory in it was allocated; the driver refuses one that has
            // ended.
            let bound = unsafe { ctx::set_current(context) };
            if let Err(error) = bound {
                tracing::warn!(%error, "no context to free NCCL's memory in");
            }
        }
    }
}

impl NcclMemory {
    /// Allocates at least `bytes` on the device of `comm`, which must be current. May outlive `comm`.
    ///
    /// # Errors
    /// [`CommError::NcclTooOld`], [`CommError::InvalidArgument`] for no bytes, [`CommError::Nccl`] where the
    /// device has no memory left.
    pub fn new(comm: &NcclComm, bytes: usize) -> Result<Arc<Self>> {
        if bytes == 0 {
            return Err(CommError::InvalidArgument {
                what: "bytes",
                why: "NCCL allocates no empty memory".into(),
            });
        }
        let library = comm.library().clone();
        // Allocate nothing that cannot be freed.
        library.api.mem_free.get()?;
        let (call, allocate) = (library.api.mem_alloc.name, library.api.mem_alloc.get()?);
        let mut pointer: *mut c_void = null_mut();
        // SAFETY: the pointer is to this frame.
        let code = unsafe { allocate(&mut pointer, bytes) };
        if code != SUCCESS {
            return Err(comm.shared.error(call, code));
        }
        Ok(Arc::new(Self {
            library,
            address: pointer as u64,
            bytes,
            context: Context::current(),
        }))
    }

    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes that was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for NcclMemory {
    fn drop(&mut self) {
        let Ok(free) = self.library.api.mem_free.get() else {
            return;
        };
        let pointer = Handle(self.address as usize as *mut c_void);
        let context = Context(self.context.0);
        let code = bounded("nccl-free", TEARDOWN, move || {
            context.bind();
            // SAFETY: allocated by NCCL, freed once, and out of all registrations, which hold shares of it.
            unsafe { free(pointer.get()) }
        });
        if code != Some(SUCCESS) {
            tracing::warn!(?code, "ncclMemFree failed or has not returned");
        }
    }
}
