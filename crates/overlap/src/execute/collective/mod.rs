//! Where the collectives of a plan come from: NCCL or symmetric memory, among sets of ranks.
//!
//! A *process group* is the ranks of one set with what they need for the collectives of one transport. Groups
//! are made in *rounds*, in which every rank of the world makes one at the same time, and are kept for later
//! plans.

mod cuda;
mod host;
mod process_group;
mod rounds;

use std::fmt::Debug;
use std::sync::Arc;

use warpweave_comm::CollectiveKernels;
use warpweave_symm_mem::{DType, DevicePtr, Exchange};

use super::error::Result;
use crate::plan::Collective;

pub use cuda::NcclGroup;
pub(super) use process_group::{GroupCall, Norm, Places, ProcessGroup, SymmetricCall, drain};
pub(super) use rounds::{Round, rounds};

/// A collective by NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NcclCall {
    /// What it does.
    pub collective: Collective,
    /// Elements of each rank's shard.
    pub counts: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// A backend with collectives: over symmetric memory by its [`CollectiveKernels`], and by NCCL or what stands
/// in for it.
pub trait CollectiveBackend: CollectiveKernels {
    /// The ranks of one set, ready for collectives by NCCL.
    type Group: Debug + Send + Sync;

    /// The largest collective of a group that was prepared for `bytes`, in bytes of all shards: plans whose
    /// collectives are no larger share it.
    fn group_capacity(bytes: usize) -> usize;

    /// Prepares the ranks of `exchange` for collectives of up to `bytes` bytes. Collective. `spans_nodes`
    /// says whether ranks of any of the groups that are made at the same time are in several nodes.
    ///
    /// # Errors
    /// What NCCL needs and is not there, on all ranks; what the communicator reports.
    fn group(
        &self,
        exchange: &Arc<dyn Exchange>,
        spans_nodes: bool,
        bytes: usize,
    ) -> Result<Self::Group>;

    /// Enqueues one collective from one operand, `src`, to the other, `dst`. It may be captured in a graph,
    /// and waits for nothing but the other ranks before the first call of a kind and size that is not
    /// captured.
    ///
    /// - `src`, which is read, has this rank's shard (all-gather), or as many elements as all shards have.
    /// - `dst`, which is written, has this rank's shard (reduce-scatter), or as many elements as all shards
    ///   have. In place it is `src`, or that part of the larger one of the two which is this rank's.
    ///
    /// # Errors
    /// What the communicator reports.
    ///
    /// # Safety
    /// - `src` and `dst` hold what the call says, without gaps, mapped until the work has ended; no unordered
    ///   work writes `src` or touches `dst`, and they overlap only as the call allows.
    /// - All ranks enqueue the collectives of the group in the same order; those of one rank are ordered by
    ///   streams or events.
    unsafe fn collective(
        &self,
        stream: &Self::Stream,
        group: &Self::Group,
        call: &NcclCall,
        operands: (DevicePtr, DevicePtr),
    ) -> Result<()>;

    /// After a synchronisation of `stream`: what went wrong in the collectives of a group, if anything did.
    ///
    /// # Errors
    /// The record of a wait that timed out; what the communicator has noticed.
    fn check_group(&self, stream: &Self::Stream, group: &Self::Group) -> Result<()>;

    /// Waits until `stream` is empty, for as long as a peer may take to come to a collective, and ends what
    /// hangs then. Nothing to do where waits have deadlines of their own.
    ///
    /// # Errors
    /// [`ExecuteError::CollectiveTimeout`](super::ExecuteError::CollectiveTimeout); what the communicator
    /// reports.
    fn drain_group(&self, _stream: &Self::Stream, _group: &Self::Group) -> Result<()> {
        Ok(())
    }

    /// Ends what hangs in a collective, so that the stream drains. The group then needs a recovery.
    fn abandon_group(&self, _group: &Self::Group) {}

    /// Makes a group usable again after a fault. What was captured before is of no use then. Collective.
    ///
    /// # Errors
    /// What the communicator and the exchange report.
    fn recover_group(
        &self,
        stream: &Self::Stream,
        group: &Self::Group,
        exchange: &Arc<dyn Exchange>,
    ) -> Result<()>;
}
