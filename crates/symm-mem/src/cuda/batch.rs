//! Many copies in one call of the driver, where it has such a call.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};

use super::Cuda;
use super::driver::{check, has_symbol};
use super::stream::{CudaQueue, is_capturing};
use crate::backend::{Backend, DevicePtr};
use crate::error::Result;

/// `cuMemcpyBatchAsync` of CUDA 12.8 and 12.9, whose bindings cudarc leaves out for CUDA 13: it also says which copy failed.
type BatchOf12 = unsafe extern "C" fn(
    dsts: *mut sys::CUdeviceptr,
    srcs: *mut sys::CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut sys::CUmemcpyAttributes,
    attribute_indices: *mut usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: sys::CUstream,
) -> CUresult;

/// How the loaded driver takes batches.
#[derive(Clone, Copy, Debug)]
enum Batch {
    /// Not at all: it is older than CUDA 12.8.
    No,
    Of12(BatchOf12),
    Of13,
}

fn driver_batch() -> Batch {
    static BATCH: OnceLock<Batch> = OnceLock::new();
    *BATCH.get_or_init(|| {
        if has_symbol(c"cuMemcpyBatchAsync_v2") {
            return Batch::Of13;
        }
        if !has_symbol(c"cuMemcpyBatchAsync") {
            return Batch::No;
        }
        // SAFETY: the driver is loaded, and by this name it exports a function of this type. It stays loaded.
        match unsafe { sys::culib().get::<BatchOf12>(b"cuMemcpyBatchAsync\0") } {
            Ok(function) => Batch::Of12(*function),
            Err(_) => Batch::No,
        }
    })
}

/// Whether batches may go on `stream`: not on the default streams, and nothing but a plain copy can be captured.
fn takes_batches(cuda: &Cuda, stream: &CudaQueue) -> Result<bool> {
    // The default stream is null; two more have numbers for handles.
    const PER_THREAD: usize = 2;
    let is_default = stream.raw() as usize <= PER_THREAD;
    Ok(!is_default && !is_capturing(cuda, stream)?)
}

impl Cuda {
    /// Makes all `copies`, each from the second address to the first, of so many bytes, on `stream`, in no order among them:
    /// as one batch where the driver takes batches (CUDA 12.8 and newer) and `stream` is not being captured, one by one
    /// otherwise.
    ///
    /// # Errors
    /// What the driver reports.
    ///
    /// # Safety
    /// All ranges are mapped until the copies have ended; what is written overlaps nothing else that is read or written; no
    /// unordered work conflicts.
    pub unsafe fn copy_batch(
        &self,
        stream: &CudaQueue,
        copies: &[(DevicePtr, DevicePtr, usize)],
    ) -> Result<()> {
        self.bind()?;
        let copies: Vec<_> = copies.iter().filter(|copy| copy.2 > 0).collect();
        let batch = match driver_batch() {
            _ if copies.len() < 2 || !takes_batches(self, stream)? => Batch::No,
            batch => batch,
        };
        let mut dsts: Vec<_> = copies.iter().map(|copy| copy.0.0).collect();
        let mut srcs: Vec<_> = copies.iter().map(|copy| copy.1.0).collect();
        let mut sizes: Vec<_> = copies.iter().map(|copy| copy.2).collect();
        let nowhere = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
            id: 0,
        };
        // For all copies from the first on.
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            // Hints, for managed memory only.
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
        };
        let mut first = 0;
        match batch {
            Batch::No => {
                for &&(dst, src, bytes) in &copies {
                    // SAFETY: the caller's obligation.
                    unsafe { self.copy(stream, dst, src, bytes)? };
                }
                Ok(())
            }
            Batch::Of12(function) => {
                let mut failed = usize::MAX;
                // SAFETY: the arrays have as many elements as the call is told, and all arguments live through it; what is
                // copied is the caller's obligation.
                let result = unsafe {
                    function(
                        dsts.as_mut_ptr(),
                        srcs.as_mut_ptr(),
                        sizes.as_mut_ptr(),
                        sizes.len(),
                        &mut attributes,
                        &mut first,
                        1,
                        &mut failed,
                        stream.raw(),
                    )
                };
                check(result, "cuMemcpyBatchAsync", self.name())
            }
            Batch::Of13 => {
                // SAFETY: as above; the driver has the symbol.
                let result = unsafe {
                    sys::cuMemcpyBatchAsync_v2(
                        dsts.as_mut_ptr(),
                        srcs.as_mut_ptr(),
                        sizes.as_mut_ptr(),
                        sizes.len(),
                        &mut attributes,
                        &mut first,
                        1,
                        stream.raw(),
                    )
                };
                check(result, "cuMemcpyBatchAsync", self.name())
            }
        }
    }
}
