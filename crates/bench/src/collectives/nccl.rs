//! NCCL as the baseline, on the backend that has it.

use std::sync::Arc;

use warpweave_comm::PointToPoint;
use warpweave_comm::collective::{Call, CollectiveKernels, Operation};
use warpweave_comm::nccl::{
    Element, NcclComm, NcclLibrary, NcclMemory, NcclOptions, NcclWindow, ReduceOp, WindowKind,
};
use warpweave_comm::p2p::TransferBackend;
use warpweave_overlap::execute::{CollectiveBackend, ExecuteBackend, NcclGroup};
use warpweave_symm_mem::{Backend, Cuda, Error, Exchange, Host};

use crate::error::Result;

/// A backend on which collectives are measured: ours and, where it replaces the defaults, NCCL's.
pub trait NcclBackend: ExecuteBackend + CollectiveKernels + TransferBackend {
    /// Makes a communicator. Collective.
    fn nccl(&self, _exchange: &Arc<dyn Exchange>) -> Result<Self::Group> {
        no_gpus()
    }

    /// Lets transfers of `ends` go by NCCL, with a communicator of their own. Collective.
    fn attach_nccl(&self, _ends: &PointToPoint<Self>, _exchange: &dyn Exchange) -> Result<()> {
        no_gpus()
    }

    /// Allocates `bytes` of NCCL's own memory in a symmetric window of a communicator. Collective.
    ///
    /// # Errors
    /// What NCCL reports; the communicator may then be of no use.
    fn open_window(
        &self,
        _comm: &Self::Group,
        _exchange: &dyn Exchange,
        _bytes: usize,
    ) -> Result<NcclWindow> {
        no_gpus()
    }

    /// Lets go of it once no rank's work uses it. Collective.
    fn close_window(&self, _window: NcclWindow, _exchange: &dyn Exchange) -> Result<()> {
        no_gpus()
    }

    /// Enqueues `call` by NCCL; may be captured in a graph.
    ///
    /// # Safety
    /// As [`Collectives::enqueue`](warpweave_comm::Collectives::enqueue); operands that lie in a window do so
    /// on all ranks.
    unsafe fn enqueue_nccl(
        &self,
        _comm: &Self::Group,
        _stream: &Self::Stream,
        _call: &Call,
    ) -> Result<()> {
        no_gpus()
    }
}

impl NcclBackend for Host {}

fn no_gpus<T>() -> Result<T> {
    let (what, why) = ("NCCL".into(), "the host backend has no GPUs".into());
    Err(Error::Unavailable { what, why }.into())
}

impl NcclBackend for Cuda {
    fn nccl(&self, exchange: &Arc<dyn Exchange>) -> Result<NcclGroup> {
        Ok(self.group(exchange, false, 0)?)
    }

    fn attach_nccl(&self, ends: &PointToPoint<Self>, exchange: &dyn Exchange) -> Result<()> {
        let library = NcclLibrary::load()?;
        self.bind()?;
        let options = NcclOptions {
            deadline: self.timeout() * 2,
            ..NcclOptions::default()
        };
        let comm = NcclComm::init(&library, exchange, options)?;
        Ok(ends.attach_nccl(comm)?)
    }

    fn open_window(
        &self,
        comm: &NcclGroup,
        exchange: &dyn Exchange,
        bytes: usize,
    ) -> Result<NcclWindow> {
        self.bind()?;
        let comm = comm.comm();
        let memory = NcclMemory::new(&comm, bytes)?;
        Ok(comm.window(exchange, &memory, WindowKind::Symmetric)?)
    }

    fn close_window(&self, window: NcclWindow, exchange: &dyn Exchange) -> Result<()> {
        self.bind()?;
        Ok(window.close(exchange)?)
    }

    unsafe fn enqueue_nccl(
        &self,
        comm: &NcclGroup,
        stream: &<Cuda as Backend>::Stream,
        call: &Call,
    ) -> Result<()> {
        self.bind()?;
        let comm = comm.comm();
        let (send, recv) = (call.input.address().0, call.output.address().0);
        let (count, element) = (call.count, Element::try_from(call.dtype)?);
        let stream = stream.raw();
        // SAFETY: the caller vouches for both ranges, the stream and the order of calls; NCCL counts as
        // `Operation` does.
        unsafe {
            match call.operation {
                Operation::AllGather => comm.all_gather(send, recv, count, element, stream)?,
                Operation::ReduceScatter => {
                    comm.reduce_scatter(send, recv, count, element, ReduceOp::Sum, stream)?;
                }
                Operation::AllReduce => {
                    comm.all_reduce(send, recv, count, element, ReduceOp::Sum, stream)?;
                }
                Operation::Broadcast => {
                    comm.broadcast(send, recv, count, element, call.root, stream)?;
                }
                Operation::AllToAll => comm.all_to_all(send, recv, count, element, stream)?,
                Operation::Barrier => {}
            }
        }
        Ok(())
    }
}
