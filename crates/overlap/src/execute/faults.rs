//! Faults of calls: how a caller learns of them, and how an executor recovers.

use std::sync::{Arc, Weak};

use warpweave_symm_mem::{Exchange, SignalFault, SignalPad};

use super::collective::{ProcessGroup, drain};
use super::error::{ExecuteError, Result};
use super::{ExecuteBackend, Executor};

/// Pads of what an executor has prepared, in the order in which all ranks did.
pub(super) type Pads<B> = Vec<Weak<NodePad<B>>>;

/// Process groups of an executor, in the order in which all ranks made them: larger ones take the place of
/// others, which those that have them keep.
pub(super) type Groups<B> = Vec<Weak<ProcessGroup<B>>>;

/// A pad and the node that it belongs to.
pub(super) struct NodePad<B: ExecuteBackend> {
    pub pad: SignalPad<B>,
    pub node: Arc<dyn Exchange>,
    /// The ranks of the node.
    pub ranks: Vec<usize>,
}

impl<B: ExecuteBackend> Executor<B> {
    /// Whether a wait of this device has failed since the last recovery: no call is enqueued then. Costs one
    /// load.
    pub fn is_stopped(&self) -> bool {
        self.0.backend.is_stopped()
    }

    /// Waits until everything on `stream` has ended, and reports what went wrong in it.
    ///
    /// # Errors
    /// [`SignalFault`] naming the peer whose signal did not come in time;
    /// [`ExecuteError::CollectiveTimeout`]; what the stream and the
    /// collectives report.
    pub fn synchronize(&self, stream: &B::Stream) -> Result<()> {
        let drained = drain(&self.0.backend, stream, &self.all_groups());
        let checked = self.check(stream);
        drained?;
        checked
    }

    /// Reports what went wrong in the calls so far of all that was prepared, after `stream` was synchronised.
    /// A peer's failed wait in one schedule may have spoilt the memory of another, so all are looked at.
    ///
    /// # Errors
    /// As [`Executor::synchronize`].
    pub fn check(&self, stream: &B::Stream) -> Result<()> {
        let pads = self.0.pads.lock();
        let pads: Vec<_> = pads.iter().filter_map(Weak::upgrade).collect();
        let pads = pads.iter().map(|pad| {
            let checked = pad.pad.check(stream).map_err(ExecuteError::from);
            checked.map_err(|error| error.with_ranks(&pad.ranks))
        });
        let groups = self.all_groups();
        most_informative(pads.chain(groups.iter().map(|group| group.check(stream))))
    }

    /// Makes everything that was prepared usable again after a fault. Collective: all ranks call it, with
    /// none of their work under way. Captured graphs stay good, but for those with collectives of NCCL.
    ///
    /// `stream` is any stream of this rank's.
    ///
    /// # Errors
    /// What the pads and the exchange report; collectives that cannot be made whole again.
    pub fn recover(&self, stream: &B::Stream) -> Result<()> {
        let exchange = self.0.exchange.as_ref();
        // A failure of the past is what is recovered from.
        let _ = self.0.backend.synchronize(stream);
        let pads = alive_everywhere(exchange, "pads", &self.0.pads.lock())?;
        for pad in pads {
            pad.pad.recover(stream, pad.node.as_ref())?;
        }
        let groups = alive_everywhere(exchange, "groups", &self.0.all_groups.lock())?;
        for group in groups {
            group.recover(stream)?;
        }
        // A call that was enqueued in part has stopped them, whether it had pads or not.
        Ok(self.0.backend.resume_waits(stream)?)
    }

    fn all_groups(&self) -> Vec<Arc<ProcessGroup<B>>> {
        let groups = self.0.all_groups.lock();
        groups.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Those that every rank still has: the others are of no use. Collective.
fn alive_everywhere<T>(
    exchange: &dyn Exchange,
    what: &'static str,
    all: &[Weak<T>],
) -> Result<Vec<Arc<T>>> {
    let mine: Vec<_> = all.iter().map(Weak::upgrade).collect();
    let alive: Vec<u8> = mine.iter().map(|one| u8::from(one.is_some())).collect();
    let alive = exchange.all_gather(what, &alive)?;
    let everywhere = |index| alive.iter().all(|rank| rank.get(index) == Some(&1));
    let mine = mine.into_iter().enumerate();
    Ok(mine
        .filter_map(|(index, one)| one.filter(|_| everywhere(index)))
        .collect())
}

/// Of the checks of pads and groups, the error that says most: a wait that failed in one of them ends those
/// in the others.
pub(super) fn most_informative(checks: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let mut faults = Vec::new();
    for check in checks {
        match check {
            Err(ExecuteError::Memory(error)) => faults.push(Err(error)),
            other => other?,
        }
    }
    Ok(SignalFault::of_several(faults)?)
}
