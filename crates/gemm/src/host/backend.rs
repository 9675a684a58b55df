//! GEMMs on the host backend, where the reference stands in for every provider.

use warpweave_symm_mem::{DevicePtr, Host};

use super::{panels, stream_error};
use crate::backend::{GemmBackend, GemmOperands};
use crate::{Error, GemmProblem, Provider};

/// A problem on the host backend. There is one algorithm and no workspace.
#[derive(Clone, Copy, Debug)]
pub struct HostPrepared {
    problem: GemmProblem,
}

impl GemmBackend for Host {
    type GemmHandle = ();
    type PreparedGemm = HostPrepared;

    fn gemm_handle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn prepare_gemm(
        &self,
        _: &(),
        problem: &GemmProblem,
        _: Provider,
    ) -> Result<HostPrepared, Error> {
        problem.validate()?;
        Ok(HostPrepared { problem: *problem })
    }

    unsafe fn gemm_tune(
        &self,
        handle: &(),
        _: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        _: GemmOperands,
    ) -> Result<HostPrepared, Error> {
        self.prepare_gemm(handle, problem, provider)
    }

    fn workspace_bytes(_: &HostPrepared) -> usize {
        0
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        prepared: &HostPrepared,
        operands: GemmOperands,
        _: DevicePtr,
    ) -> Result<(), Error> {
        let problem = prepared.problem;
        panels::check_addresses(&problem, operands)?;
        self.launch(stream, "gemm", move || {
            // SAFETY: the caller of `gemm` vouches for the ranges until the stream has run this.
            unsafe { panels::multiply_raw(&problem, operands) }.map_err(stream_error)
        })?;
        Ok(())
    }

    fn gemm_problem(prepared: &HostPrepared) -> &GemmProblem {
        &prepared.problem
    }

    fn gemm_algorithm(_: &HostPrepared) -> String {
        "host panels".into()
    }
}
