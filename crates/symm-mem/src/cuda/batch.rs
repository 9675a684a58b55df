//! Many copies in one driver call, if the driver has such a call.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys;

use super::Cuda;
use super::driver::check;
use super::function::driver_functions;
use super::stream::{CudaStream, is_capturing};
use crate::backend::{Backend, DevicePtr};
use crate::error::Result;

/// `CUmemcpyAttributes`, which the bindings have since CUDA 12.8.
#[repr(C)]
struct Attributes {
    source_order: c_uint,
    /// Type and number of the location of the sources and of the destinations: hints, for managed memory
    /// only.
    places: [(c_uint, c_int); 2],
    flags: c_uint,
}

/// For all copies: the sources are read in stream order, and kernels may run concurrently.
const ATTRIBUTES: Attributes = Attributes {
    source_order: 1,     // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    places: [(0, 0); 2], // CU_MEM_LOCATION_TYPE_INVALID
    flags: 1,            // CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
};

type Addresses = *mut sys::CUdeviceptr;
type Sizes = *mut usize;

// Arguments: destinations, sources, sizes and their number; attributes, the first copy of each and their
// number; in CUDA 12 a place for the number of the copy that failed; the stream.
driver_functions! {
    BATCH = c"cuMemcpyBatchAsync_v2"(
        Addresses, Addresses, Sizes, usize, *mut Attributes, Sizes, usize, sys::CUstream
    ) since "13.0";
    BATCH_OF_12 = c"cuMemcpyBatchAsync"(
        Addresses, Addresses, Sizes, usize, *mut Attributes, Sizes, usize, Sizes, sys::CUstream
    ) since "12.8";
}

/// Whether `stream` takes batches: not a default stream, and not a stream in a capture, which records plain
/// copies only.
fn takes_batches(cuda: &Cuda, stream: &CudaStream) -> Result<bool> {
    // The default stream is null; two more have numbers for handles.
    const PER_THREAD: usize = 2;
    let is_default = stream.raw() as usize <= PER_THREAD;
    Ok(!is_default && !is_capturing(cuda, stream)?)
}

impl Cuda {
    /// Enqueues all `copies` (destination, source, bytes) on `stream`, unordered among each other: as one
    /// batch if the driver supports it (CUDA 12.8 or newer) and `stream` is not being captured, else one by
    /// one. Like [`push_by_engine`](crate::Backend::push_by_engine), for staging memory of peers: copies
    /// nothing once the host knows that a wait of this device has failed.
    ///
    /// # Errors
    /// Errors of the driver.
    ///
    /// # Safety
    /// All ranges are mapped until the copies have ended. No destination overlaps anything else that is read
    /// or written. No unordered work conflicts.
    pub unsafe fn copy_batch(
        &self,
        stream: &CudaStream,
        copies: &[(DevicePtr, DevicePtr, usize)],
    ) -> Result<()> {
        self.bind()?;
        if self.leaves_out_copies(stream)? {
            return Ok(());
        }
        let copies: Vec<_> = copies.iter().copied().filter(|copy| copy.2 > 0).collect();
        let takes = copies.len() > 1
            && (BATCH.is_present() || BATCH_OF_12.is_present())
            && takes_batches(self, stream)?;
        if !takes {
            for &(dst, src, bytes) in &copies {
                // SAFETY: the caller's obligation.
                unsafe { self.copy(stream, dst, src, bytes)? };
            }
            return Ok(());
        }
        let mut dsts: Vec<_> = copies.iter().map(|copy| copy.0.0).collect();
        let mut srcs: Vec<_> = copies.iter().map(|copy| copy.1.0).collect();
        let mut sizes: Vec<_> = copies.iter().map(|copy| copy.2).collect();
        let (dsts, srcs) = (dsts.as_mut_ptr(), srcs.as_mut_ptr());
        let (count, sizes) = (sizes.len(), sizes.as_mut_ptr());
        let (mut attributes, mut first, stream) = (ATTRIBUTES, 0, stream.raw());
        let result = if let Ok(batch) = BATCH.get() {
            // SAFETY: the arrays have the number of elements passed to the call, and all arguments live
            // through it; what is copied is the caller's obligation.
            unsafe {
                batch(
                    dsts,
                    srcs,
                    sizes,
                    count,
                    &mut attributes,
                    &mut first,
                    1,
                    stream,
                )
            }
        } else {
            let (batch, mut failed) = (BATCH_OF_12.get()?, usize::MAX);
            // SAFETY: as above.
            unsafe {
                batch(
                    dsts,
                    srcs,
                    sizes,
                    count,
                    &mut attributes,
                    &mut first,
                    1,
                    &mut failed,
                    stream,
                )
            }
        };
        check(result, "cuMemcpyBatchAsync", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the type against the bindings that this workspace builds with.
    #[test]
    fn attributes_are_those_of_the_header() {
        use std::mem::offset_of;
        use sys::{CUmemcpyAttributes, CUmemcpyFlags, CUmemcpySrcAccessOrder as Order};
        assert_eq!(size_of::<Attributes>(), size_of::<CUmemcpyAttributes>());
        assert_eq!(
            offset_of!(Attributes, places),
            offset_of!(CUmemcpyAttributes, srcLocHint)
        );
        assert_eq!(
            offset_of!(Attributes, flags),
            offset_of!(CUmemcpyAttributes, flags)
        );
        let order = Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        assert_eq!(ATTRIBUTES.source_order, order as c_uint);
        let flags = CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
        assert_eq!(ATTRIBUTES.flags, flags as c_uint);
    }
}
