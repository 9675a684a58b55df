//! Products with their sums on a GPU: the hand-written kernels.

use warpweave_symm_mem::Cuda;

use crate::reduction::Sums;
use crate::sm90::{OneShotPlan, ReductionPlan};
use crate::{Error, ReducingGemmBackend, ReducingMatmul};

/// A plan of either kernel.
#[derive(Debug)]
pub enum CudaReducingPlan {
    /// Owners sum.
    ByOwners(ReductionPlan),
    /// Each rank sums all.
    OneShot(OneShotPlan),
}

impl ReducingGemmBackend for Cuda {
    type ReducingPlan = CudaReducingPlan;

    fn reducing_plan(&self, product: &ReducingMatmul) -> Result<CudaReducingPlan, Error> {
        Ok(match product.c {
            Sums::Each(_) => CudaReducingPlan::OneShot(OneShotPlan::new(self, product)?),
            _ => CudaReducingPlan::ByOwners(ReductionPlan::new(self, product)?),
        })
    }

    unsafe fn reducing_matmul(
        &self,
        stream: &Self::Stream,
        plan: &CudaReducingPlan,
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the guarantees that this method asks for.
        unsafe {
            match plan {
                CudaReducingPlan::ByOwners(plan) => plan.launch(self, stream),
                CudaReducingPlan::OneShot(plan) => plan.launch(self, stream),
            }
        }
    }
}
