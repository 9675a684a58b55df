//! All-gathers of the CUDA backend, by NCCL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpweave_comm::nccl::{Element, Launch};
use warpweave_comm::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Exchange};

use super::{AllGatherShape, CollectiveBackend};
use crate::execute::agreement::together;
use crate::execute::error::{ExecuteError, Result};

/// Time between two looks at what NCCL has noticed.
const LOOK: Duration = Duration::from_millis(100);

/// NCCL's communicator of the ranks, made anew by a recovery.
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

/// One all-gather by NCCL: `ncclAllGather` where all ranks give the same, else a group of broadcasts.
#[derive(Debug)]
pub struct NcclAllGather {
    group: Arc<NcclGroup>,
    counts: Vec<usize>,
    element: Element,
}

fn options(cuda: &Cuda) -> NcclOptions {
    // Blocking launches: a baseline should not pay for a thread that its launches go through. They can be captured too.
    NcclOptions {
        deadline: cuda.timeout() * 6,
        launch: Launch::Blocking,
        ..NcclOptions::default()
    }
}

/// NCCL has no communicator whose ranks share a device.
fn own_device(cuda: &Cuda, exchange: &dyn Exchange) -> Result<()> {
    // An identity that cannot be had is like no other.
    let identity = match cuda.context().uuid() {
        Ok(uuid) => uuid.bytes.iter().map(|&byte| byte as u8).collect(),
        Err(_) => format!("rank {}", exchange.rank()).into_bytes(),
    };
    let all = exchange.all_gather("device identity", &identity)?;
    let rank = exchange.rank();
    match (0..all.len()).find(|&peer| peer != rank && all[peer] == identity) {
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
    type AllGather = NcclAllGather;

    fn group(&self, exchange: &Arc<dyn Exchange>) -> Result<NcclGroup> {
        let exchange = exchange.as_ref();
        // A rank without the library would leave the others waiting in NCCL.
        let library = NcclLibrary::load().map_err(Into::into);
        let library = together(exchange, "loading NCCL", library)?;
        together(exchange, "devices for NCCL", own_device(self, exchange))?;
        self.bind()?;
        let comm = Mutex::new(NcclComm::init(&library, exchange, options(self))?);
        Ok(NcclGroup { library, comm })
    }

    fn prepare_all_gather(
        &self,
        group: &Arc<NcclGroup>,
        _: &Arc<dyn Exchange>,
        shape: &AllGatherShape,
    ) -> Result<NcclAllGather> {
        Ok(NcclAllGather {
            group: group.clone(),
            counts: shape.rows.iter().map(|rows| rows * shape.cols).collect(),
            element: Element::try_from(shape.dtype)?,
        })
    }

    unsafe fn all_gather(
        &self,
        stream: &<Cuda as Backend>::Stream,
        gather: &NcclAllGather,
        src: DevicePtr,
        dst: DevicePtr,
    ) -> Result<()> {
        self.bind()?;
        let comm = gather.group.comm();
        // SAFETY: the caller vouches for both ranges, the stream and the order of calls.
        unsafe {
            comm.all_gather_uneven(src.0, dst.0, &gather.counts, gather.element, stream.raw())?;
        }
        Ok(())
    }

    fn drain_all_gather(
        &self,
        stream: &<Cuda as Backend>::Stream,
        gather: &NcclAllGather,
    ) -> Result<()> {
        let start = Instant::now();
        // NCCL's kernels wait for ever: between looks at the stream, one at what NCCL has noticed.
        while !self.drained_within(stream, LOOK)? {
            let comm = gather.group.comm();
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

    fn check_all_gather(
        &self,
        _: &<Cuda as Backend>::Stream,
        gather: &NcclAllGather,
    ) -> Result<()> {
        Ok(gather.group.comm().check()?)
    }

    fn abandon_all_gather(&self, gather: &NcclAllGather) {
        gather.group.comm().abort();
    }

    fn recover_all_gather(
        &self,
        stream: &<Cuda as Backend>::Stream,
        gather: &NcclAllGather,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()> {
        self.bind()?;
        let mut comm = gather.group.comm();
        // A rank whose own collective went well has peers whose did not.
        comm.abort();
        self.synchronize(stream)?;
        *comm = NcclComm::init(&gather.group.library, exchange.as_ref(), options(self))?;
        Ok(())
    }
}
