//! Multicast objects.

use cudarc::driver::sys::{self, CUresult as R};
use warpweave_fake_driver::Control;

use super::{DESCRIPTOR, UNIT, access, addresses, context, memory, read, write};

pub fn multicast_enforced(driver: &Control) {
    done!(cuInit(0));
    context(0);
    let prop = sys::CUmulticastObjectProp {
        numDevices: 2,
        size: UNIT,
        handleTypes: DESCRIPTOR.0 as u64,
        flags: 0,
    };
    let odd = sys::CUmulticastObjectProp { size: 100, ..prop };
    let mut object = 0;
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMulticastCreate(&mut object, &odd)
    );
    done!(cuMulticastCreate(&mut object, &prop));
    let (near, far) = (memory(0), memory(1));
    let base = addresses(UNIT);
    done!(cuMulticastAddDevice(object, 0));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(object, 0));
    refused!(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(near, 0));
    refused!(
        CUDA_ERROR_ILLEGAL_STATE,
        cuMulticastBindMem(object, 0, near, 0, UNIT, 0)
    );
    done!(cuMulticastAddDevice(object, 1));
    refused!(CUDA_ERROR_ILLEGAL_STATE, cuMemMap(base, UNIT, 0, object, 0));
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMulticastBindMem(object, 0, near, 0, 2 * UNIT, 0)
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMulticastBindMem(object, 0, object, 0, UNIT, 0)
    );
    done!(cuMulticastBindMem(object, 0, near, 0, UNIT, 0));
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMulticastBindMem(object, 0, near, 0, UNIT, 0)
    );
    refused!(CUDA_ERROR_ILLEGAL_STATE, cuMulticastAddDevice(object, 1));
    refused!(CUDA_ERROR_ILLEGAL_STATE, cuMemMap(base, UNIT, 0, object, 0));
    done!(cuMulticastBindMem(object, 0, far, 0, UNIT, 0));
    done!(cuMemMap(base, UNIT, 0, object, 0));
    done!(cuMemSetAccess(base, UNIT, &access(0), 1));
    assert_eq!(write(base), R::CUDA_SUCCESS);
    assert_eq!(read(base), R::CUDA_ERROR_ILLEGAL_ADDRESS, "invariant 7");
    driver.restart(None);
    done!(cuMulticastUnbind(object, 0, 0, UNIT));
    let fault = &driver.faults()[0];
    assert!(
        fault.contains("unbound while the multicast object is mapped"),
        "{fault}"
    );
    refused!(
        CUDA_ERROR_INVALID_VALUE,
        cuMulticastUnbind(object, 0, 0, UNIT)
    );
    done!(cuMemUnmap(base, UNIT));
    done!(cuMemAddressFree(base, UNIT));
    driver.restart(None);
    done!(cuMemRelease(object));
    assert!(
        driver.faults()[0].contains("released with memory bound"),
        "{:?}",
        driver.faults()
    );
    for handle in [near, far] {
        done!(cuMemRelease(handle));
    }
    done!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(driver.live(), [""; 0]);
}
