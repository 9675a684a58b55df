//! Where the collectives of a plan come from: NCCL on GPUs, shared memory on the host.

mod cuda;
mod host;

use std::fmt::Debug;
use std::sync::Arc;

use warpweave_symm_mem::{Backend, DType, DevicePtr, Exchange};

use super::error::Result;

pub use cuda::{NcclAllGather, NcclGroup};

/// An all-gather of rows: rank `r` gives `rows[r]` rows of `cols` elements.
#[derive(Clone, Debug)]
pub struct AllGatherShape {
    /// A name for faults and symmetric memory, the same on all ranks.
    pub name: String,
    /// Rows of each rank.
    pub rows: Vec<usize>,
    /// Elements of a row.
    pub cols: usize,
    /// Element type.
    pub dtype: DType,
}

/// A backend with collectives.
pub trait CollectiveBackend: Backend {
    /// What all plans of a device share: NCCL's communicator.
    type Group: Debug + Send + Sync;
    /// One all-gather of a plan.
    type AllGather: Debug + Send + Sync;

    /// Prepares the ranks of `exchange` for collectives. Collective.
    fn group(&self, exchange: &Arc<dyn Exchange>) -> Result<Self::Group>;

    /// Prepares an all-gather. Collective: all ranks give the same shape.
    fn prepare_all_gather(
        &self,
        group: &Arc<Self::Group>,
        exchange: &Arc<dyn Exchange>,
        shape: &AllGatherShape,
    ) -> Result<Self::AllGather>;

    /// Enqueues one all-gather. Waits for nothing and may be captured in a graph.
    ///
    /// # Safety
    /// - `src` holds this rank's rows and `dst` those of all ranks, without gaps, mapped until the work has ended; no
    ///   unordered work writes `src` or touches `dst`, and they do not overlap.
    /// - All ranks enqueue the collectives of the group in the same order; those of one rank are ordered by streams or
    ///   events.
    unsafe fn all_gather(
        &self,
        stream: &Self::Stream,
        gather: &Self::AllGather,
        src: DevicePtr,
        dst: DevicePtr,
    ) -> Result<()>;

    /// After a synchronisation of `stream`: what went wrong in an all-gather, if anything did.
    fn check_all_gather(&self, stream: &Self::Stream, gather: &Self::AllGather) -> Result<()>;

    /// Waits until `stream` is empty, for as long as a peer may take to come to the all-gather, and ends what hangs then.
    /// Nothing to do where its waits have deadlines of their own.
    ///
    /// # Errors
    /// [`ExecuteError::CollectiveTimeout`](super::ExecuteError::CollectiveTimeout); what the collective reports.
    fn drain_all_gather(&self, _stream: &Self::Stream, _gather: &Self::AllGather) -> Result<()> {
        Ok(())
    }

    /// Ends what hangs in an all-gather, so that the stream drains. It then needs a recovery.
    fn abandon_all_gather(&self, gather: &Self::AllGather);

    /// Makes an all-gather usable again after a fault. What was captured before is of no use then. Collective.
    fn recover_all_gather(
        &self,
        stream: &Self::Stream,
        gather: &Self::AllGather,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()>;
}
