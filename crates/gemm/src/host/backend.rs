//! Products on the host backend, where the reference stands in for every provider.

use warpweave_symm_mem::Host;

use super::panels;
use crate::backend::{GemmBackend, GemmOperands};
use crate::{Error, GemmProblem, Provider};

/// A problem on the host backend. There is one algorithm and no workspace.
#[derive(Clone, Copy, Debug)]
pub struct HostPlan {
    problem: GemmProblem,
}

impl GemmBackend for Host {
    type GemmHandle = ();
    type GemmPlan = HostPlan;

    fn gemm_handle(&self) -> Result<(), Error> {
        Ok(())
    }

    fn gemm_plan(&self, _: &(), problem: &GemmProblem, _: Provider) -> Result<HostPlan, Error> {
        problem.validate()?;
        Ok(HostPlan { problem: *problem })
    }

    unsafe fn gemm_tune(
        &self,
        handle: &(),
        _: &Self::Stream,
        problem: &GemmProblem,
        provider: Provider,
        _: GemmOperands,
    ) -> Result<HostPlan, Error> {
        self.gemm_plan(handle, problem, provider)
    }

    unsafe fn gemm(
        &self,
        stream: &Self::Stream,
        plan: &HostPlan,
        operands: GemmOperands,
    ) -> Result<(), Error> {
        let problem = plan.problem;
        panels::check_addresses(&problem, operands)?;
        self.launch(stream, "gemm", move || {
            // SAFETY: the caller of `gemm` vouches for the ranges until the stream has run this.
            let product = unsafe { panels::multiply_raw(&problem, operands) };
            product.map_err(|error| warpweave_symm_mem::Error::Stream {
                device: "host".into(),
                cause: error.to_string(),
            })
        })?;
        Ok(())
    }

    fn gemm_problem(plan: &HostPlan) -> &GemmProblem {
        &plan.problem
    }

    fn gemm_algorithm(_: &HostPlan) -> String {
        "host panels".into()
    }
}
