//! What candle's own examples do: each GEMM by candle, then NCCL's all-reduce as a custom operation, then
//! candle's addition and norm. What Warpweave is compared with.

use candle_core::{Shape, Tensor};
use warpweave_comm::nccl::{Element, ReduceOp};
use warpweave_comm::{Communicator, NcclComm};
use warpweave_symm_mem::{BackendKind, Cuda, DeviceSlice};

use super::operand::Op;
use super::{Launch, Norm, Parallel, Plain};
use crate::error::{Error, Result};
use crate::place::Place;

/// A rank with NCCL.
pub struct Nccl {
    place: Place<Cuda>,
    comm: NcclComm,
    world: usize,
}

impl Nccl {
    /// NCCL among the ranks of a job. Collective.
    ///
    /// # Errors
    /// NCCL is missing, or ranks share a GPU.
    pub fn new(place: &Place<Cuda>, comm: &Communicator) -> Result<Self> {
        let nccl = comm.nccl(place.backend.context())?;
        Ok(Nccl {
            place: place.clone(),
            comm: nccl,
            world: comm.world(),
        })
    }

    /// Closes it. Collective, with no work under way.
    ///
    /// # Errors
    /// A rank that did not come.
    pub fn close(self) -> Result<()> {
        Ok(self.comm.close()?)
    }

    fn call(
        &self,
        name: &'static str,
        x: &Tensor,
        shape: impl Into<Shape>,
        call: &dyn Fn(DeviceSlice<'_>, DeviceSlice<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        let call =
            |operands: &[DeviceSlice<'_>], result: DeviceSlice<'_>| call(operands[0], result);
        let op = Op {
            name,
            kind: BackendKind::Cuda,
            shape: shape.into(),
            call: &call,
        };
        Ok(op.apply(&[x])?)
    }

    fn all_reduce(&self, x: &Tensor) -> Result<Tensor> {
        let (count, element) = (x.elem_count(), element(x)?);
        self.call("nccl-all-reduce", x, x.shape(), &|from, to| {
            let (from, to) = (from.address(0).0, to.address(0).0);
            let stream = self.place.stream.inner().cu_stream();
            // SAFETY: both tensors have so many elements, and candle frees them in the order of the stream.
            // All ranks make the same calls.
            unsafe {
                self.comm
                    .all_reduce(from, to, count, element, ReduceOp::Sum, stream)?
            };
            Ok(())
        })
    }
}

fn element(x: &Tensor) -> Result<Element> {
    match x.dtype() {
        candle_core::DType::F32 => Ok(Element::F32),
        candle_core::DType::F16 => Ok(Element::F16),
        candle_core::DType::BF16 => Ok(Element::Bf16),
        other => Err(Error::Differs(format!("no all-reduce of {other:?}"))),
    }
}

impl Parallel for Nccl {
    fn world(&self) -> usize {
        self.world
    }

    fn column(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        rows: usize,
    ) -> Result<Tensor> {
        Plain.column(x, weight, bias, rows)
    }

    fn row_add_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let partial = Plain.column(x, weight, None, x.dim(0)?)?;
        let reduced = if self.world == 1 {
            partial
        } else {
            self.all_reduce(&partial)?
        };
        let residual = (residual + reduced)?;
        let normalized = self.norm(&residual, norm)?;
        Ok((residual, normalized))
    }

    fn norm(&self, x: &Tensor, norm: &Norm<'_>) -> Result<Tensor> {
        Plain.norm(x, norm)
    }

    fn all_gather(&self, columns: &Tensor) -> Result<Tensor> {
        if self.world == 1 {
            return Ok(columns.clone());
        }
        let (rows, each) = columns.dims2()?;
        let (count, element) = (columns.elem_count(), element(columns)?);
        let gathered = self.call(
            "nccl-all-gather",
            columns,
            (self.world, rows, each),
            &|from, to| {
                let (from, to) = (from.address(0).0, to.address(0).0);
                let stream = self.place.stream.inner().cu_stream();
                // SAFETY: as for the all-reduce; the result has the elements of all ranks.
                unsafe { self.comm.all_gather(from, to, count, element, stream)? };
                Ok(())
            },
        )?;
        Ok(gathered
            .transpose(0, 1)?
            .reshape((rows, self.world * each))?)
    }

    fn finish(&self) -> Result<()> {
        Ok(self.place.candle.synchronize()?)
    }

    unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        // SAFETY: the caller's obligation.
        unsafe { self.place.capture(step) }
    }
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL of {} ranks", self.world)
    }
}
