//! Products that wait on a GPU: a CUTLASS kernel with the tables of the product.

use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Memory};

use super::{handle, multiprocessors_beside_signals};
use crate::cutlass::{self, Arrivals};
use crate::waiting::Table;
use crate::{Error, GemmOperands, WaitingGemmBackend, WaitingMatmul};

/// A product that waits, with its tables in device memory.
#[derive(Debug)]
pub struct CudaWaitingPlan {
    kernel: cutlass::Plan,
    operands: GemmOperands,
    /// Own rows that are copied to staging: destination, source, bytes.
    shared: Vec<(DevicePtr, DevicePtr, usize)>,
    /// What the kernel's arrivals point to.
    _table: <Cuda as Backend>::Memory,
}

impl WaitingGemmBackend for Cuda {
    type WaitingPlan = CudaWaitingPlan;

    fn waiting_plan(&self, product: &WaitingMatmul) -> Result<CudaWaitingPlan, Error> {
        product.validate()?;
        let (problem, own) = (&product.problem, &product.own);
        cutlass::check_problem(problem)?;
        let configs = cutlass::waiting_configs()?;
        cutlass::check_device(self.device())?;
        handle::bind(self)?;

        let multiprocessors = multiprocessors_beside_signals(self);
        let candidate =
            cutlass::select(configs, problem, multiprocessors).ok_or(Error::NoCandidate)?;
        let table = Table::new(product, &configs[candidate.config])?;
        let (image, at) = table.image();
        let memory = self.allocate(image.len())?;
        let stream = self.setup_stream()?;
        // SAFETY: the memory has the image's size and is this plan's alone.
        unsafe { self.upload(&stream, memory.address(), &image)? };

        let row = problem.lda * problem.dtype.size();
        let staging = match product.arrivals.is_empty() {
            true => product.a,
            false => product.staging,
        };
        // Tensor maps of no rows do not exist; where there are no own rows, no tile reads them.
        let (first_row, own_end) = match own.is_empty() {
            true => (staging.0, problem.m),
            false => (product.a.0.wrapping_sub((own.start * row) as u64), own.end),
        };
        let arrivals = Arrivals {
            pad: product.pad,
            slot: product.ready,
            own: first_row,
            own_end,
            tables: [at.bands, at.tiles, at.waits, at.signals]
                .map(|part| memory.address().add(part).0),
        };
        let kernel = cutlass::Plan::waiting(
            candidate.config,
            problem,
            handle::ordinal(self),
            multiprocessors,
            &arrivals,
        )?;
        let shared = table.shared(own).into_iter().map(|rows| {
            let src = product.a.add((rows.start - own.start) * row);
            let last = (rows.len() - 1) * row + problem.k * problem.dtype.size();
            (product.staging.add(rows.start * row), src, last)
        });
        Ok(CudaWaitingPlan {
            shared: shared.collect(),
            kernel,
            operands: GemmOperands::new(staging, product.b, product.c),
            _table: memory,
        })
    }

    unsafe fn waiting_matmul(
        &self,
        stream: &Self::Stream,
        plan: &CudaWaitingPlan,
    ) -> Result<(), Error> {
        for &(dst, src, bytes) in &plan.shared {
            // SAFETY: the caller vouches for own rows, in `a` and in staging.
            unsafe { self.copy(stream, dst, src, bytes)? };
        }
        handle::bind(self)?;
        // SAFETY: the caller vouches for the matrices and the pad; the tables live with the plan.
        unsafe { plan.kernel.launch(plan.operands, 0, handle::raw(stream)) }
    }
}
