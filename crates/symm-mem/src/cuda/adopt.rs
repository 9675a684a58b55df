//! Memory shared with cudarc.
//!
//! [`Cuda::adopt`] takes a context that the caller made, and [`Cuda::adopt_stream`] one of its streams. This
//! module adds slices: the address of a slice that the caller has, and slices whose memory other processes
//! can open.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{self, CudaSlice, CudaViewMut, DeviceRepr, DeviceSlice, ValidAsZeroBits};

use super::Cuda;
use super::memory::CudaMemory;
use super::stream::{CudaStream, driver_error};
use crate::backend::{DevicePtr, Memory};
use crate::error::{Error, Result};

/// A cudarc slice in memory of `cuMemAlloc`, which legacy CUDA IPC can open. cudarc allocates its own slices
/// from a stream-ordered pool if the device has one, and CUDA IPC cannot open those.
///
/// Use it as the [`CudaSlice`] that it derefs to. Dropping it waits for the adopted streams of its device,
/// then frees it.
#[derive(Debug)]
pub struct SharedSlice<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: CudaMemory,
    // Dropped after the memory: the device knows the stream as long as this lives, so freeing waits for it.
    _queue: CudaStream,
}

impl<T: DeviceRepr> SharedSlice<T> {
    /// A mutable view for a kernel or a copy of cudarc.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T> SharedSlice<T> {
    /// Its first address.
    pub fn address(&self) -> DevicePtr {
        self.memory.address()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

// Not `DerefMut`: swapping the slice for another one would free each with the wrong allocator.
impl<T> Deref for SharedSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> Drop for SharedSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the slice is taken once, here, and not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // `memory` frees it, the way it was allocated.
        slice.leak();
    }
}

impl Cuda {
    /// A zeroed slice of `len` elements for cudarc's work on `stream`, which ranks of other processes can
    /// open.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::InvalidArgument`] if the stream belongs to another context.
    pub fn shareable_slice<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        stream: &Arc<driver::CudaStream>,
        len: usize,
    ) -> Result<SharedSlice<T>> {
        let queue = self.adopt_stream(stream.clone())?;
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or_else(|| Error::InvalidArgument {
                what: "length of a slice",
                why: format!("{len} elements are beyond the address space"),
            })?;
        let memory = CudaMemory::new(self, bytes)?;
        if self.context().is_event_tracking() {
            // cudarc creates events for the slice, and panics if it cannot.
            let made = self.context().new_event(None);
            made.map_err(|e| driver_error(e, "cuEventCreate", self.name()))?;
        }
        // SAFETY: new memory of this size, all zeros, which `T` allows; the slice never frees it.
        let slice = unsafe { queue.inner().upgrade_device_ptr(memory.address().0, len) };
        Ok(SharedSlice {
            slice: ManuallyDrop::new(slice),
            memory,
            _queue: queue,
        })
    }

    /// Address and length in bytes of a cudarc slice or view, for work on `stream`. The caller keeps the
    /// slice until that work has ended and orders it against cudarc's work on other streams: cudarc's
    /// tracking, if enabled, makes `stream` wait for earlier writes to the slice, but does not see this
    /// crate's work. So call it outside of captures.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the slice belongs to another context.
    pub fn address_of<T, S>(&self, slice: &S, stream: &CudaStream) -> Result<(DevicePtr, usize)>
    where
        S: driver::DevicePtr<T> + DeviceSlice<T>,
    {
        if slice.stream().context().cu_ctx() != self.context().cu_ctx() {
            return Err(Error::InvalidArgument {
                what: "slice",
                why: format!("it belongs to another context than that of {}", self.name()),
            });
        }
        let (address, _recorded) = slice.device_ptr(stream.inner());
        Ok((DevicePtr(address), slice.num_bytes()))
    }
}
