//! NCCL as the baseline, on the backend that has it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweave_comm::PointToPoint;
use warpweave_comm::collective::{Call, CollectiveKernels, Operation};
use warpweave_comm::nccl::{
    Element, NcclComm, NcclLibrary, NcclMemory, NcclOptions, NcclWindow, ReduceOp, WindowKind,
};
use warpweave_comm::p2p::TransferBackend;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Error, Exchange, Host};

use crate::error::Result;
use crate::plans::{CollectiveBackend, ExecuteBackend, ExecuteError, NcclGroup};

/// A backend on which collectives are measured: it has ours, and NCCL where there is any.
pub trait NcclBackend: ExecuteBackend + CollectiveKernels + TransferBackend {
    /// A communicator of all ranks.
    type Comm;
    /// Memory of NCCL's own in a symmetric window of a communicator.
    type Window;

    /// Makes a communicator. Collective.
    ///
    /// # Errors
    /// A missing capability where there is no NCCL; what NCCL reports.
    fn nccl(&self, exchange: &Arc<dyn Exchange>) -> Result<Self::Comm>;

    /// Lets transfers of `ends` go by NCCL, with a communicator of their own. Collective.
    ///
    /// # Errors
    /// As [`NcclBackend::nccl`].
    fn attach_nccl(&self, ends: &PointToPoint<Self>, exchange: &dyn Exchange) -> Result<()>;

    /// Allocates and registers `bytes`. Collective.
    ///
    /// # Errors
    /// What NCCL reports; the communicator may then be of no use.
    fn open_window(
        &self,
        comm: &Self::Comm,
        exchange: &dyn Exchange,
        bytes: usize,
    ) -> Result<Self::Window>;

    /// Where it begins.
    fn window_address(window: &Self::Window) -> DevicePtr;

    /// Lets go of it once no rank's work uses it. Collective.
    ///
    /// # Errors
    /// What NCCL reports.
    fn close_window(&self, window: Self::Window, exchange: &dyn Exchange) -> Result<()>;

    /// Enqueues `call` by NCCL; may be captured in a graph.
    ///
    /// # Safety
    /// As [`Collectives::enqueue`](warpweave_comm::Collectives::enqueue); operands that lie in a window do so
    /// on all ranks.
    unsafe fn enqueue_nccl(
        &self,
        comm: &Self::Comm,
        stream: &Self::Stream,
        call: &Call,
    ) -> Result<()>;

    /// Waits until `stream` is empty, and aborts a communicator that waits too long for a peer.
    ///
    /// # Errors
    /// What NCCL and the stream report; a peer that did not come.
    fn drain_nccl(&self, comm: &Self::Comm, stream: &Self::Stream) -> Result<()>;
}

/// A communicator of a run, or why there is none on some rank; neither where it is not wanted.
pub(super) type Library<C> = (Option<C>, Option<String>);

impl NcclBackend for Host {
    type Comm = Infallible;
    type Window = Infallible;

    fn nccl(&self, _: &Arc<dyn Exchange>) -> Result<Infallible> {
        Err(no_gpus().into())
    }

    fn attach_nccl(&self, _: &PointToPoint<Self>, _: &dyn Exchange) -> Result<()> {
        Err(no_gpus().into())
    }

    fn open_window(&self, comm: &Infallible, _: &dyn Exchange, _: usize) -> Result<Infallible> {
        match *comm {}
    }

    fn window_address(window: &Infallible) -> DevicePtr {
        match *window {}
    }

    fn close_window(&self, window: Infallible, _: &dyn Exchange) -> Result<()> {
        match window {}
    }

    unsafe fn enqueue_nccl(
        &self,
        comm: &Infallible,
        _: &<Host as Backend>::Stream,
        _: &Call,
    ) -> Result<()> {
        match *comm {}
    }

    fn drain_nccl(&self, comm: &Infallible, _: &<Host as Backend>::Stream) -> Result<()> {
        match *comm {}
    }
}

fn no_gpus() -> Error {
    Error::Unavailable {
        what: "NCCL".into(),
        why: "the host backend has no GPUs".into(),
    }
}

/// Time between two looks at what NCCL has noticed.
const LOOK: Duration = Duration::from_millis(100);

impl NcclBackend for Cuda {
    type Comm = NcclGroup;
    type Window = NcclWindow;

    fn nccl(&self, exchange: &Arc<dyn Exchange>) -> Result<NcclGroup> {
        Ok(self.group(exchange, 0)?)
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

    fn window_address(window: &NcclWindow) -> DevicePtr {
        DevicePtr(window.address())
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

    fn drain_nccl(&self, comm: &NcclGroup, stream: &<Cuda as Backend>::Stream) -> Result<()> {
        let start = Instant::now();
        // NCCL's kernels wait for ever: between looks at the stream, one at what NCCL has noticed.
        while !self.drained_within(stream, LOOK)? {
            let comm = comm.comm();
            let after = start.elapsed();
            let noticed = comm.check();
            if noticed.is_err() || after > self.timeout() * 2 {
                comm.abort();
                noticed?;
                let rank = comm.rank();
                return Err(ExecuteError::CollectiveTimeout { rank, after }.into());
            }
        }
        Ok(comm.comm().check()?)
    }
}
