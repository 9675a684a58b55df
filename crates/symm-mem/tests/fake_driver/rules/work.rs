//! Memory under work.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult as R};
use warpweave_fake_driver::Control;

use super::context;

/// With streams that have threads: what is in use stays.
pub fn enforced_under_work(driver: &Control) {
    done!(cuInit(0));
    context(0);
    let (mut module, mut function, mut stream) = (null_mut(), null_mut(), null_mut());
    let (mut event, mut address) = (null_mut(), 0);
    let code = c"warpweave_delay".as_ptr();
    done!(cuModuleLoadDataEx(
        &mut module,
        code.cast(),
        0,
        null_mut(),
        null_mut()
    ));
    done!(cuModuleGetFunction(&mut function, module, code));
    done!(cuStreamCreate(&mut stream, 0));
    done!(cuEventCreate(&mut event, 0));
    done!(cuMemAlloc_v2(&mut address, 64));
    let mut ns = 200_000_000u64;
    let mut parameters = [(&raw mut ns).cast()];
    let config = sys::CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: null_mut(),
        numAttrs: 0,
    };
    done!(cuLaunchKernelEx(
        &config,
        function,
        parameters.as_mut_ptr(),
        null_mut()
    ));
    done!(cuMemsetD8Async(address, 3, 64, stream));
    done!(cuEventRecord(event, stream));
    refused!(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    refused!(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    assert_eq!(driver.faults(), [""; 0], "to be busy is no fault");
    refused!(CUDA_ERROR_ILLEGAL_STATE, cuMemFree_v2(address));
    done!(cuEventSynchronize(event));
    done!(cuStreamSynchronize(stream));
    done!(cuMemFree_v2(address));
    assert_eq!(driver.faults().len(), 1, "{:?}", driver.faults());
    // Work on what is gone fails later, and for the whole context.
    done!(cuMemsetD8Async(address, 3, 64, stream));
    refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(stream));
    refused!(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(stream));
    driver.wipe();
}
