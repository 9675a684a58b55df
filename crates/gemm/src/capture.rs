//! Set-up while a stream is being captured.

use std::marker::PhantomData;

use cudarc::driver::sys::CUresult;
use warpweave_symm_mem::cuda::DriverFunction;

use crate::Error;

/// `cuThreadExchangeStreamCaptureMode`, with the enumeration as the integer that it is in C.
type Exchange = unsafe extern "C" fn(mode: *mut u32) -> CUresult;
// SAFETY: the signature in `cuda.h`.
static EXCHANGE: DriverFunction<Exchange> =
    unsafe { DriverFunction::new(c"cuThreadExchangeStreamCaptureMode", "10.1") };

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// While it lives, this thread may load code, allocate and use streams that are not captured, even if it or
/// another thread captures a stream in a stricter mode, as frameworks do.
pub(crate) struct Relaxed {
    /// The mode that it was, if the driver captures streams at all.
    before: Option<u32>,
    /// The mode is this thread's.
    _thread: PhantomData<*const ()>,
}

impl Relaxed {
    pub fn begin() -> Result<Self, Error> {
        let Ok(exchange) = EXCHANGE.get() else {
            return Ok(Self {
                before: None,
                _thread: PhantomData,
            });
        };
        let mut mode = RELAXED;
        // SAFETY: the mode is valid for a read and a write.
        let result = unsafe { exchange(&mut mode) };
        match result {
            CUresult::CUDA_SUCCESS => Ok(Self {
                before: Some(mode),
                _thread: PhantomData,
            }),
            failed => Err(warpweave_symm_mem::Error::Unavailable {
                what: "the relaxed capture mode".into(),
                why: format!("cuThreadExchangeStreamCaptureMode answers {failed:?}"),
            }
            .into()),
        }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let (Some(mut mode), Ok(exchange)) = (self.before, EXCHANGE.get()) {
            // SAFETY: as above. It fails only for a mode that there is not.
            unsafe { exchange(&mut mode) };
        }
    }
}

#[cfg(test)]
mod tests {
    use cudarc::driver::sys::CUstreamCaptureMode as Mode;

    use super::*;

    #[test]
    fn the_mode_is_that_of_the_bindings() {
        assert_eq!(RELAXED, Mode::CU_STREAM_CAPTURE_MODE_RELAXED as u32);
    }
}
