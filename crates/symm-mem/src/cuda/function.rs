//! Functions of the loaded libcuda, looked up by name.
//!
//! cudarc links libcuda or loads it at run time, as the depending project chose. This module works in both
//! cases, because it asks the dynamic loader itself.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::{Error, Result};

/// Opens a library only if the process has loaded it already. glibc and musl use this value on every Linux.
const RTLD_NOLOAD: c_int = 4;

/// The libcuda of this process, which stays loaded.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            // First the linked one. Then the names that cudarc tries when it loads libcuda itself, in its
            // order, so that both use the same library.
            [
                ("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD),
                ("libcuda.so", RTLD_LAZY),
                ("libcuda.so.1", RTLD_LAZY),
            ]
            .into_iter()
            .find_map(|(name, flags)| {
                // SAFETY: loading the driver runs its initializers, as any use of it does.
                unsafe { Library::open(Some(name), flags | RTLD_LOCAL) }.ok()
            })
        })
        .as_ref()
}

/// Whether libcuda is on this machine. If cudarc loads it at run time, a call without it panics, so this
/// check comes before any call of cudarc's.
pub fn is_driver_present() -> bool {
    library().is_some()
}

/// Whether the loaded driver has `symbol`. If cudarc loads libcuda at run time, a call to a missing symbol
/// panics.
pub(super) fn has_symbol(symbol: &CStr) -> bool {
    // SAFETY: the symbol is looked up, never called.
    library().is_some_and(|library| unsafe {
        library.get::<*const ()>(symbol.to_bytes_with_nul()).is_ok()
    })
}

/// A function of the CUDA driver that not every driver has, looked up on first use.
///
/// A call through `cudarc::driver::sys` to a function that the driver lacks panics or, if libcuda is linked,
/// keeps the whole program from starting. Through this type it is an error of the one capability that needs
/// the function.
///
/// ```
/// use std::ffi::c_int;
/// use warpweave_symm_mem::cuda::DriverFunction;
///
/// // SAFETY: the type is that of `cuda.h`.
/// static VERSION: DriverFunction<unsafe extern "C" fn(*mut c_int) -> c_int> =
///     unsafe { DriverFunction::new(c"cuDriverGetVersion", "2.2") };
///
/// match VERSION.get() {
///     Ok(function) => {
///         let mut version = 0;
///         unsafe { function(&mut version) };
///     }
///     Err(error) => assert!(error.is_unavailable()),
/// }
/// ```
pub struct DriverFunction<F> {
    symbol: &'static CStr,
    since: &'static str,
    found: OnceLock<Option<F>>,
}

impl<F: Copy> DriverFunction<F> {
    /// The function that libcuda exports as `symbol` (with its suffix, such as `_v2`) since CUDA `since`,
    /// such as `"12.8"`.
    ///
    /// # Safety
    /// `F` is a pointer to an `unsafe extern "C"` function with the signature that `symbol` has in every
    /// driver.
    pub const unsafe fn new(symbol: &'static CStr, since: &'static str) -> Self {
        const { assert!(size_of::<F>() == size_of::<*const ()>()) };
        DriverFunction {
            symbol,
            since,
            found: OnceLock::new(),
        }
    }

    /// The function.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the driver does not have it, or there is no driver.
    pub fn get(&self) -> Result<F> {
        self.find().ok_or_else(|| Error::Unavailable {
            what: self.symbol.to_string_lossy().into_owned(),
            why: self.why_missing(),
        })
    }

    /// Whether the driver has it.
    pub fn is_present(&self) -> bool {
        self.find().is_some()
    }

    fn find(&self) -> Option<F> {
        *self.found.get_or_init(|| {
            // SAFETY: the creator of `self` guarantees the type; the library stays loaded.
            let found = unsafe { library()?.get::<F>(self.symbol.to_bytes_with_nul()) };
            found.ok().map(|symbol| *symbol)
        })
    }
}

impl<F> DriverFunction<F> {
    /// Why the function is missing, if it is.
    pub(super) fn why_missing(&self) -> String {
        if is_driver_present() {
            format!("the driver is older than CUDA {}", self.since)
        } else {
            "libcuda is not on this machine".into()
        }
    }
}

impl<F> fmt::Debug for DriverFunction<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverFunction({})", self.symbol.to_string_lossy())
    }
}

/// Declares [`DriverFunction`]s of this backend with the argument types of `cuda.h`. All of them return a
/// `CUresult`.
macro_rules! driver_functions {
    ($($(#[$attribute:meta])* $name:ident = $symbol:literal($($argument:ty),*) since $since:literal;)*) => {$(
        $(#[$attribute])*
        static $name: $crate::cuda::DriverFunction<
            unsafe extern "C" fn($($argument),*) -> cudarc::driver::sys::CUresult,
        > = {
            // SAFETY: the signature in `cuda.h`, enumerations being the integers that they are in C.
            unsafe { $crate::cuda::DriverFunction::new($symbol, $since) }
        };
    )*};
}
pub(super) use driver_functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_no_driver_has_is_an_error() {
        // SAFETY: no library has it.
        static NONE: DriverFunction<unsafe extern "C" fn()> =
            unsafe { DriverFunction::new(c"cuNoSuchFunction", "99.0") };
        assert!(!NONE.is_present() && !has_symbol(c"cuNoSuchFunction"));
        let error = NONE.get().unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains("cuNoSuchFunction"), "{error}");
    }
}
