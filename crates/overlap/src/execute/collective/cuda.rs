//! NCCL on the CUDA backend.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpweave_comm::nccl::{Element, Launch, ReduceOp};
use warpweave_comm::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Exchange, agree};

use super::{CollectiveBackend, NcclCall};
use crate::execute::error::{ExecuteError, Result};
use crate::execute::on_this_device;
use crate::plan::Collective;

/// Time between two looks at what NCCL has noticed.
const LOOK: Duration = Duration::from_millis(100);

/// NCCL's communicator of some ranks, made anew by a recovery.
pub struct NcclGroup {
    library: Arc<NcclLibrary>,
    comm: Mutex<NcclComm>,
}

impl std::fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NcclGroup({:?})", self.library)
    }
}

impl NcclGroup {
    /// The communicator. A thread that panicked with it has made no call that others could not follow.
    pub fn comm(&self) -> MutexGuard<'_, NcclComm> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn options(cuda: &Cuda) -> NcclOptions {
    // Blocking launches: a baseline should not pay for a thread that its launches go through. They can be
    // captured too.
    NcclOptions {
        deadline: cuda.timeout() * 6,
        launch: Launch::Blocking,
        ..NcclOptions::default()
    }
}

/// NCCL has no communicator whose ranks share a device.
fn own_device(cuda: &Cuda, exchange: &dyn Exchange) -> Result<()> {
    let rank = exchange.rank();
    let ranks = on_this_device(cuda, exchange)?;
    match ranks.into_iter().find(|&peer| peer != rank) {
        None => Ok(()),
        Some(peer) => Err(warpweave_symm_mem::Error::Unavailable {
            what: "NCCL".into(),
            why: format!("ranks {rank} and {peer} share {}", cuda.name()),
        }
        .into()),
    }
}

impl CollectiveBackend for Cuda {
    type Group = NcclGroup;

    /// A communicator serves any size: there is one for each set of ranks, whatever the order in which plans
    /// are bound.
    fn group_capacity(_bytes: usize) -> usize {
        usize::MAX
    }

    fn group(
        &self,
        exchange: &Arc<dyn Exchange>,
        _spans_nodes: bool,
        _bytes: usize,
    ) -> Result<NcclGroup> {
        let exchange = exchange.as_ref();
        // A rank without the library would leave the others waiting in NCCL.
        let library = NcclLibrary::load().map_err(ExecuteError::from);
        let library = agree(exchange, "loading NCCL", library)?;
        agree(exchange, "devices for NCCL", own_device(self, exchange))?;
        self.bind()?;
        let comm = Mutex::new(NcclComm::init(&library, exchange, options(self))?);
        Ok(NcclGroup { library, comm })
    }

    unsafe fn collective(
        &self,
        stream: &<Cuda as Backend>::Stream,
        group: &NcclGroup,
        call: &NcclCall,
        (src, dst): (DevicePtr, DevicePtr),
    ) -> Result<()> {
        self.bind()?;
        let comm = group.comm();
        let (src, dst, stream) = (src.0, dst.0, stream.raw());
        let (counts, element) = (&call.counts, Element::try_from(call.dtype)?);
        // SAFETY: the caller vouches for both ranges, the stream and the order of calls.
        unsafe {
            match call.collective {
                Collective::AllGather => {
                    comm.all_gather_uneven(src, dst, counts, element, stream)?;
                }
                Collective::ReduceScatter => {
                    let op = ReduceOp::Sum;
                    comm.reduce_scatter_uneven(src, dst, counts, element, op, stream)?;
                }
                Collective::AllReduce => {
                    let count = counts.iter().sum();
                    comm.all_reduce(src, dst, count, element, ReduceOp::Sum, stream)?;
                }
            }
        }
        Ok(())
    }

    fn drain_group(&self, stream: &<Cuda as Backend>::Stream, group: &NcclGroup) -> Result<()> {
        let start = Instant::now();
        // NCCL's kernels wait for ever: between looks at the stream, one at what NCCL has noticed.
        while !self.drained_within(stream, LOOK)? {
            let comm = group.comm();
            comm.check()?;
            let after = start.elapsed();
            if after > options(self).deadline {
                comm.abort();
                let rank = comm.rank();
                return Err(ExecuteError::CollectiveTimeout { rank, after });
            }
        }
        Ok(())
    }

    fn check_group(&self, _: &<Cuda as Backend>::Stream, group: &NcclGroup) -> Result<()> {
        Ok(group.comm().check()?)
    }

    fn abandon_group(&self, group: &NcclGroup) {
        group.comm().abort();
    }

    fn recover_group(
        &self,
        stream: &<Cuda as Backend>::Stream,
        group: &NcclGroup,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()> {
        self.bind()?;
        let mut comm = group.comm();
        // A rank whose own collective went well has peers whose did not.
        comm.abort();
        let quiet = self.synchronize(stream).map_err(ExecuteError::from);
        agree(exchange.as_ref(), "recovery of NCCL", quiet)?;
        *comm = NcclComm::init(&group.library, exchange.as_ref(), options(self))?;
        Ok(())
    }
}
