//! The functions of the driver, grouped as in its documentation. That documentation says what each does,
//! takes and returns; this code says what it refuses.
//!
//! # Safety
//! As for the driver's own functions: pointers are valid for what is read and written through them, and
//! handles are the driver's.

/// Defines driver functions. Each is exported under its name, has the type of the bindings, and goes through
/// the journal. Put `before_init` before functions that need no `cuInit`, and `of_cuda_12` before functions
/// that drivers still export but the bindings of CUDA 13 lack.
macro_rules! calls {
    (of_cuda_12 $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(calls!(@define initialized $name ($($argument: $type),*) $body);)*
    };
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(calls!(@one initialized $name ($($argument: $type),*) $body);)*
    };
    (before_init $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(calls!(@one call $name ($($argument: $type),*) $body);)*
    };
    (@one $enter:ident $name:ident ($($argument:ident: $type:ty),*) $body:block) => {
        // The bindings were made from the driver's own header.
        const _: unsafe fn($($type),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
        calls!(@define $enter $name ($($argument: $type),*) $body);
    };
    (@define $enter:ident $name:ident ($($argument:ident: $type:ty),*) $body:block) => {
        #[doc = concat!("The driver's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for the driver's own.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> cudarc::driver::sys::CUresult {
            crate::calls::$enter(stringify!($name), || {
                #[allow(clippy::unit_arg)]
                $body
            })
        }
    };
}
// After the macro, so that they see it.
mod contexts;
mod devices;
mod graphs;
mod ipc;
mod memory;
mod modules;
mod multicast;
mod pointers;
mod streams;
mod virtual_memory;

use cudarc::driver::sys::CUresult;

use crate::journal::{Outcome, call, require};
use crate::state::lock;

/// As [`call`], for functions that need `cuInit`.
fn initialized(name: &'static str, body: impl FnOnce() -> Outcome) -> CUresult {
    call(name, || {
        let ready = lock().initialized;
        require(
            ready,
            CUresult::CUDA_ERROR_NOT_INITIALIZED,
            "cuInit comes first",
        )?;
        body()
    })
}

/// Writes a result.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    require(
        !to.is_null(),
        CUresult::CUDA_ERROR_INVALID_VALUE,
        "there is no place for the answer",
    )?;
    // SAFETY: the caller's obligation.
    unsafe { to.write(value) };
    Ok(())
}
