//! Products with their sums on a GPU: the hand-written kernel.

use warpweave_symm_mem::Cuda;

use crate::sm90::ReductionPlan;
use crate::{Error, ReducingGemmBackend, ReducingMatmul};

impl ReducingGemmBackend for Cuda {
    type ReducingPlan = ReductionPlan;

    fn reducing_plan(&self, product: &ReducingMatmul) -> Result<ReductionPlan, Error> {
        ReductionPlan::new(self, product)
    }

    unsafe fn reducing_matmul(
        &self,
        stream: &Self::Stream,
        plan: &ReductionPlan,
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe { plan.launch(self, stream) }
    }
}
