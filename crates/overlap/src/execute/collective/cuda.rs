//! NCCL on the CUDA backend.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpweave_comm::nccl::{Element, Launch, ReduceOp};
use warpweave_comm::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::{
    Backend, Cuda, DevicePtr, Error, Exchange, ExchangeError, PadView, SignalPad, ThreadExchange,
    agree, sync,
};

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
    guard: Guard,
}

/// What NCCL lacks for a job in which a rank may be late: a deadline for first calls, and notice of an abort.
///
/// - NCCL connects its ranks in the first call that needs a connection, on the host and without a deadline.
///   Which one does depends on the collective and its size. So a barrier comes before the first call of each
///   kind, with the deadline of a wait: a rank that is late is named. One that dies in that call ends it
///   ([`NcclComm::connecting`]).
/// - Kernels of a communicator that is aborted end with any values, which a peer that is late takes for
///   valid. So a rank tells the others first ([`NcclGroup::give_up`]): on the device where they share a pad,
///   else by a [`Mark`].
struct Guard {
    /// A pad of the group. Of this rank alone if the ranks are in several nodes or do not reach each other's
    /// memory: then first calls have no deadline.
    pad: SignalPad<Cuda>,
    /// The other ranks of the pad.
    peers: Vec<usize>,
    /// Where a pad does not tell the others of an abort, what does.
    mark: Option<Mark>,
    /// Collectives, each with its bytes rounded up to a power of two.
    connected: sync::Mutex<HashSet<(Collective, usize)>>,
}

/// A mark that a rank leaves before it aborts, and that others look for after their calls: what an aborted
/// kernel has sent comes later than the mark.
struct Mark {
    exchange: Arc<dyn Exchange>,
    /// Of the current communicator.
    name: sync::Mutex<String>,
}

impl Mark {
    fn new(exchange: &Arc<dyn Exchange>) -> Result<Self> {
        let mark = Mark {
            exchange: exchange.clone(),
            name: sync::Mutex::default(),
        };
        mark.renew()?;
        // An exchange without marks is found here.
        mark.exchange.mark(&mark.name.lock(), false)?;
        Ok(mark)
    }

    /// A name that no communicator has had. Collective.
    fn renew(&self) -> Result<()> {
        let own = RandomState::new().build_hasher().finish();
        let all = self
            .exchange
            .all_gather("a mark of NCCL", &own.to_le_bytes())?;
        *self.name.lock() = format!("nccl.abort.{:?}", all[0]);
        Ok(())
    }

    fn leave(&self) -> Result<(), ExchangeError> {
        self.exchange.mark(&self.name.lock(), true).map(drop)
    }

    /// Whether another rank has aborted the communicator.
    fn check(&self) -> Result<()> {
        let rank = self.exchange.rank();
        match self.exchange.mark(&self.name.lock(), false)? {
            Some(peer) if peer != rank => Err(ExecuteError::CollectiveAborted { rank, peer }),
            _ => Ok(()),
        }
    }
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

    /// Waits for the other ranks before `call`, if it is the first of its kind, and returns whether it is.
    /// Not during a capture, in which nothing can be waited for.
    fn wait_for_peers(
        &self,
        cuda: &Cuda,
        stream: &<Cuda as Backend>::Stream,
        call: &NcclCall,
    ) -> Result<bool> {
        let Guard {
            pad,
            peers,
            connected,
            ..
        } = &self.guard;
        let bytes = call.counts.iter().sum::<usize>() * call.dtype.size();
        let kind = (call.collective, bytes.next_power_of_two());
        if connected.lock().contains(&kind) || cuda.is_capturing(stream)? {
            return Ok(false);
        }
        match pad.signal(stream, 0, peers) {
            // A build without device code waits for nobody with a deadline, nor does a rank alone.
            Err(Error::FeatureMissing { .. }) => {}
            Ok(()) if peers.is_empty() => {}
            signalled => {
                signalled?;
                pad.wait(stream, 0, peers, 0)?;
                cuda.drain_group(stream, self)?;
                pad.check(stream)?;
            }
        }
        connected.lock().insert(kind);
        Ok(true)
    }

    /// Aborts the communicator, after this device has stopped and the other ranks have been told so: neither
    /// they nor what follows here takes what the aborted kernels leave for valid.
    fn give_up(&self, cuda: &Cuda) {
        let pad = &self.guard.pad;
        let tell = |stream| {
            let at_once = PadView {
                timeout_ns: 0,
                ..pad.view()
            };
            // SAFETY: `self` owns the pad, and no rank signals itself, so this is the only use of the flag.
            unsafe { cuda.wait(&stream, &at_once, 0, &[pad.flags().rank()], 0)? };
            cuda.synchronize(&stream)
        };
        let comm = self.comm();
        match cuda.setup_stream().and_then(tell) {
            // As in `wait_for_peers`.
            Ok(()) | Err(Error::FeatureMissing { .. }) => {}
            Err(error) => tracing::warn!("{error}: the other ranks are not told of an abort"),
        }
        if let Some(Err(error)) = self.guard.mark.as_ref().map(Mark::leave) {
            tracing::warn!("{error}: the other ranks are not told of an abort");
        }
        comm.abort();
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
        Some(peer) => Err(Error::Unavailable {
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
        spans_nodes: bool,
        _bytes: usize,
    ) -> Result<NcclGroup> {
        let shared = || SignalPad::new(self, exchange, "overlap.nccl", 1);
        let shared = (!spans_nodes).then(shared).transpose();
        let (pad, mark) = match shared {
            Ok(Some(pad)) => (pad, None),
            // GPUs that do not reach each other's memory have NCCL all the same. This is so on all ranks.
            alone => {
                let why = alone.err().map_or_else(
                    || "ranks in several nodes".to_string(),
                    |error| error.to_string(),
                );
                tracing::warn!("{why}: NCCL's first calls have no deadline");
                let alone = ThreadExchange::group(1).remove(0);
                let alone: Arc<dyn Exchange> = Arc::new(alone);
                let pad = SignalPad::new(self, &alone, "overlap.nccl", 1)?;
                (pad, Some(Mark::new(exchange)?))
            }
        };
        let exchange = exchange.as_ref();
        // A rank without the library would leave the others waiting in NCCL.
        let library = NcclLibrary::load().map_err(ExecuteError::from);
        let library = agree(exchange, "loading NCCL", library)?;
        agree(exchange, "devices for NCCL", own_device(self, exchange))?;
        self.bind()?;
        let comm = Mutex::new(NcclComm::init(&library, exchange, options(self))?);
        let (rank, world) = (pad.flags().rank(), pad.flags().world());
        let guard = Guard {
            pad,
            peers: (0..world).filter(|&peer| peer != rank).collect(),
            mark,
            connected: sync::Mutex::default(),
        };
        Ok(NcclGroup {
            library,
            comm,
            guard,
        })
    }

    unsafe fn collective(
        &self,
        stream: &<Cuda as Backend>::Stream,
        group: &NcclGroup,
        call: &NcclCall,
        (src, dst): (DevicePtr, DevicePtr),
    ) -> Result<()> {
        self.bind()?;
        let is_first = group.wait_for_peers(self, stream, call)?;
        let comm = group.comm();
        let (element, stream) = (Element::try_from(call.dtype)?, stream.raw() as usize);
        // SAFETY: the caller vouches for both ranges, the stream and the order of calls.
        let enqueue = move |comm: &NcclComm, call: &NcclCall| unsafe {
            let (src, dst, stream) = (src.0, dst.0, stream as *mut _);
            let (counts, sum) = (&call.counts, ReduceOp::Sum);
            match call.collective {
                Collective::AllGather => comm.all_gather_uneven(src, dst, counts, element, stream),
                Collective::ReduceScatter => {
                    comm.reduce_scatter_uneven(src, dst, counts, element, sum, stream)
                }
                Collective::AllReduce => {
                    comm.all_reduce(src, dst, counts.iter().sum(), element, sum, stream)
                }
            }
        };
        if is_first {
            let call = call.clone();
            comm.connecting(move |comm| enqueue(comm, &call))?;
        } else {
            enqueue(&comm, call)?;
        }
        Ok(())
    }

    fn drain_group(&self, stream: &<Cuda as Backend>::Stream, group: &NcclGroup) -> Result<()> {
        let start = Instant::now();
        // NCCL's kernels wait for ever: between looks at the stream, one at what NCCL has noticed.
        while !self.drained_within(stream, LOOK)? {
            group.comm().check()?;
            let after = start.elapsed();
            if after > options(self).deadline {
                group.give_up(self);
                let rank = group.comm().rank();
                return Err(ExecuteError::CollectiveTimeout { rank, after });
            }
        }
        Ok(())
    }

    fn check_group(&self, stream: &<Cuda as Backend>::Stream, group: &NcclGroup) -> Result<()> {
        // One's own abort is known to the communicator.
        group.comm().check()?;
        group.guard.pad.check(stream)?;
        group.guard.mark.as_ref().map_or(Ok(()), Mark::check)
    }

    fn abandon_group(&self, group: &NcclGroup) {
        group.give_up(self);
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
        let Guard {
            pad,
            connected,
            mark,
            ..
        } = &group.guard;
        pad.recover(stream, exchange.as_ref())?;
        mark.as_ref().map_or(Ok(()), Mark::renew)?;
        connected.lock().clear();
        *comm = NcclComm::init(&group.library, exchange.as_ref(), options(self))?;
        Ok(())
    }
}
