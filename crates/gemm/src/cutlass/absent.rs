//! The build without the kernels.

use std::convert::Infallible;
use std::ffi::c_void;

use super::{Arrivals, Config, Tiling};
use crate::{Error, GemmOperands, GemmProblem, Provider};

/// The compiled configurations: without the feature `cutlass`, an error that says so.
pub fn configs() -> Result<&'static [Config], Error> {
    Err(missing())
}

/// The compiled configurations of GEMMs that wait: without the feature `cutlass`, an error that says so.
pub fn chunked_configs() -> Result<&'static [Config], Error> {
    Err(missing())
}

/// A kernel bound to a problem. Without the feature there is none.
#[derive(Debug)]
pub struct Prepared(Infallible);

impl Prepared {
    /// Always [`Error::MissingFeature`].
    pub fn new(_: Tiling, _: &GemmProblem, _: i32, _: u32) -> Result<Self, Error> {
        Err(missing())
    }

    /// Always [`Error::MissingFeature`].
    pub(crate) fn waiting(_: usize, _: &GemmProblem, _: i32, _: u32) -> Result<Self, Error> {
        Err(missing())
    }

    /// Bytes of device workspace.
    pub fn workspace(&self) -> usize {
        match self.0 {}
    }

    /// Enqueues the GEMM.
    ///
    /// # Safety
    /// None to uphold: no value of this type exists.
    pub unsafe fn launch(&self, _: GemmOperands, _: u64, _: *mut c_void) -> Result<(), Error> {
        match self.0 {}
    }

    /// Enqueues a GEMM that waits.
    ///
    /// # Safety
    /// None to uphold: no value of this type exists.
    pub(crate) unsafe fn launch_waiting(
        &self,
        _: GemmOperands,
        _: &Arrivals,
        _: *mut c_void,
    ) -> Result<(), Error> {
        match self.0 {}
    }
}

fn missing() -> Error {
    Error::MissingFeature {
        provider: Provider::Cutlass,
        feature: "cutlass",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_feature_is_named() {
        let text = configs().unwrap_err().to_string();
        assert!(text.contains("feature `cutlass`"), "{text}");
    }
}
