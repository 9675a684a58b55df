//! Where the zero-CTA policy applies.

use super::comm::NcclComm;
use super::config::CtaPolicy;
use super::state::Kind;

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// [`NcclComm::all_gather`].
    AllGather,
    /// [`NcclComm::all_reduce`].
    AllReduce,
    /// [`NcclComm::reduce_scatter`].
    ReduceScatter,
    /// [`NcclComm::reduce`].
    Reduce,
    /// [`NcclComm::broadcast`].
    Broadcast,
    /// [`NcclComm::all_to_all`].
    AllToAll,
    /// [`NcclComm::gather`].
    Gather,
    /// [`NcclComm::scatter`].
    Scatter,
    /// [`NcclComm::send`], [`NcclComm::recv`] and the calls for uneven parts.
    PointToPoint,
}

/// Why copy engines will not do a call's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoZeroCta {
    /// The communicator has another policy.
    #[error("the communicator was made with {0:?} for its CTA policy")]
    Policy(CtaPolicy),
    /// Copy engines cannot do it.
    #[error(
        "{0:?} is not among the calls that copy engines do: all-gather, all-to-all, gather, scatter"
    )]
    Collective(Collective),
    /// A single rank needs no communication.
    #[error("a communicator of one rank copies by itself")]
    Alone,
    /// A buffer is outside all symmetric windows.
    #[error("the buffer at {address:#x} lies in no symmetric window of this communicator")]
    Unregistered {
        /// The buffer's address.
        address: u64,
    },
}

impl NcclComm {
    /// Whether NCCL will be asked to do this call with copy engines, without any SM. It does so if all ranks
    /// are on one host, each GPU reaches all others, the driver supports CUDA 12.5, and `NCCL_CTA_POLICY`
    /// does not overrule it; otherwise it falls back to kernels without notice.
    ///
    /// The answer must be the same on all ranks: so a gather's `recv` lies in a window even where it is not
    /// written, and a scatter's `send` even where it is not read.
    ///
    /// # Errors
    /// Why not.
    pub fn zero_cta(&self, collective: Collective, send: u64, recv: u64) -> Result<(), NoZeroCta> {
        use Collective::{AllGather, AllToAll, Gather, Scatter};
        if self.shared.policy != CtaPolicy::ZeroCta {
            return Err(NoZeroCta::Policy(self.shared.policy));
        }
        if !matches!(collective, AllGather | AllToAll | Gather | Scatter) {
            return Err(NoZeroCta::Collective(collective));
        }
        if self.world() == 1 {
            return Err(NoZeroCta::Alone);
        }
        let symmetric = |kind| kind == Kind::Window { symmetric: true };
        match [send, recv]
            .into_iter()
            .find(|&address| !self.shared.registered(address, symmetric))
        {
            None => Ok(()),
            Some(address) => Err(NoZeroCta::Unregistered { address }),
        }
    }
}
