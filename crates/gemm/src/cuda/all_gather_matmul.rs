//! Products that gather on a GPU: the hand-written kernel.

use warpweave_symm_mem::Cuda;

use super::{Choice, CudaGemm, handle};
use crate::sm90::AllGatherPlan;
use crate::{AllGatherGemmBackend, AllGatherMatmul, Error, GemmBackend, GemmOperands, Provider};

impl AllGatherGemmBackend for Cuda {
    type AllGatherPlan = AllGatherPlan;

    fn all_gather_plan(&self, product: &AllGatherMatmul) -> Result<AllGatherPlan, Error> {
        product.validate()?;
        AllGatherPlan::new(self, product)
    }

    unsafe fn all_gather_tuned(
        &self,
        gemm: &CudaGemm,
        stream: &Self::Stream,
        product: &AllGatherMatmul,
    ) -> Result<AllGatherPlan, Error> {
        let AllGatherMatmul { problem, b, c, .. } = product;
        let choice = match gemm.tuned(problem, Provider::Sm90) {
            Some(choice) => choice,
            None => {
                let operands = GemmOperands::new(product.staging, *b, *c);
                // SAFETY: the caller's obligation; staging has all rows of A.
                let plan =
                    unsafe { self.gemm_tune(gemm, stream, problem, Provider::Sm90, operands)? };
                plan.choice()
            }
        };
        let candidate = match choice {
            Choice::Sm90(candidate) => Some(candidate),
            Choice::CublasLt(_) | Choice::Cutlass(_) => None,
        };
        self.all_gather_plan(&AllGatherMatmul {
            candidate,
            ..product.clone()
        })
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
