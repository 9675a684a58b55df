//! Products that gather on a GPU: the hand-written kernel.

use warpweave_symm_mem::Cuda;

use super::handle;
use crate::sm90::AllGatherPlan;
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error};

impl AllGatherGemmBackend for Cuda {
    type AllGatherPlan = AllGatherPlan;

    fn all_gather_plan(&self, product: &AllGatherMatmul) -> Result<AllGatherPlan, Error> {
        product.validate()?;
        AllGatherPlan::new(self, product)
    }

    fn all_gather_algorithm(plan: &AllGatherPlan) -> String {
        format!("sm90 {}", plan.candidate())
    }

    unsafe fn all_gather_matmul(
        &self,
        stream: &Self::Stream,
        plan: &AllGatherPlan,
    ) -> Result<(), Error> {
        handle::bind(self)?;
        // SAFETY: the caller's obligation.
        unsafe { plan.launch(self, stream) }
    }
}
