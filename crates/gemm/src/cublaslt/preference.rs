//! What cuBLASLt's heuristics are asked to respect.

use super::header as sys;
use super::library::Library;
use crate::Error;

/// A preference, destroyed when dropped.
pub(super) struct Preference<'a> {
    library: &'a Library,
    pub(super) raw: sys::cublasLtMatmulPreference_t,
}

impl<'a> Preference<'a> {
    pub(super) fn new(library: &'a Library) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a place for one preference.
        let status = unsafe { (library.functions.preference_create)(&mut raw) };
        library.check("cublasLtMatmulPreferenceCreate", status)?;
        Ok(Self { library, raw })
    }

    pub(super) fn set<T: Copy>(&self, attribute: u32, value: &T) -> Result<(), Error> {
        // SAFETY: the preference lives and `value` is readable at its size.
        let status = unsafe {
            (self.library.functions.preference_set)(
                self.raw,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        self.library
            .check("cublasLtMatmulPreferenceSetAttribute", status)
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        // SAFETY: the preference was created by this library and is not used again.
        unsafe { (self.library.functions.preference_destroy)(self.raw) };
    }
}
