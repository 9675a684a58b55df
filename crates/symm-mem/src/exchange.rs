//! How the ranks of a group exchange bytes and descriptors during set-up.
//!
//! `warpweave-comm` implements [`Exchange`] over its store and Unix sockets. [`ThreadExchange`] is for ranks
//! that are threads of one process, in tests and small examples.

pub(crate) mod error;
mod nodes;
mod sub;
mod threads;

use std::any::Any;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

pub use error::ExchangeError;
pub use nodes::Nodes;
pub use sub::SubExchange;
pub use threads::ThreadExchange;

/// All-gather of bytes and descriptors among the ranks of a group.
///
/// Every method with a `tag` is collective: all ranks call the same methods in the same order with the same
/// `tag`. Every method ends in bounded time. A peer that died or never arrived is an error that names it.
pub trait Exchange: Send + Sync {
    /// This process's rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world(&self) -> usize;

    /// The group's ranks as the outermost exchange numbers them, by rank.
    fn members(&self) -> Vec<usize> {
        (0..self.world()).collect()
    }

    /// Tells groups apart: symmetric memory is that of the ranks that made it. The same in all processes of a
    /// build.
    fn group_id(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.members().hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the bytes of every rank, by rank.
    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// The nodes of the group. The first call may be collective.
    ///
    /// # Errors
    /// As [`Exchange::all_gather`].
    fn nodes(&self) -> Result<Nodes, ExchangeError> {
        Ok(Nodes::one(self.world()))
    }

    /// The address at which this rank reaches each rank, by rank. The first call may be collective.
    ///
    /// # Errors
    /// As [`Exchange::all_gather`].
    fn addresses(&self) -> Result<Vec<IpAddr>, ExchangeError> {
        Ok(vec![Ipv4Addr::LOCALHOST.into(); self.world()])
    }

    /// Sends `fds` to every peer of this rank's [node](Exchange::nodes) and host, and returns those of every
    /// rank, by rank; this rank's own entry holds duplicates, and those of others are empty. Ranks may send
    /// different numbers of descriptors.
    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError>;

    /// Calls `watcher` when the first rank is lost, now or later, for as long as the watcher's owner lives.
    /// Later losses are not reported, because the group has failed by then. An exchange that cannot detect a
    /// loss never calls it.
    fn watch(&self, watcher: LossWatcher) {
        drop(watcher);
    }

    /// This rank has waited for a peer by other means until a deadline passed. Its next call then need not
    /// wait as long again: a rank that stopped costs the others one deadline. Not collective.
    fn note_timeout(&self) {}

    /// The rank that first left the mark `name`: this one if `leave` is true and none has before. For what a
    /// rank must know of another that makes no call with it. Not collective; a name has at most a
    /// thousand bytes, and is used once.
    ///
    /// # Errors
    /// The marks cannot be reached, or the exchange has none.
    fn mark(&self, name: &str, leave: bool) -> Result<Option<usize>, ExchangeError> {
        let _ = leave;
        Err(ExchangeError::NoMarks { name: name.into() })
    }

    /// Returns once all ranks have called it.
    fn barrier(&self, tag: &str) -> Result<(), ExchangeError> {
        self.all_gather(tag, &[]).map(drop)
    }
}

type Notify = dyn Fn(Option<usize>, &str) + Send + Sync;

/// Notifies the owner of pending device work that a rank it may be waiting for is lost.
pub struct LossWatcher {
    owner: Weak<dyn Any + Send + Sync>,
    notify: Box<Notify>,
}

impl LossWatcher {
    /// Calls `notify` with a rank that died or left with an error, and with the cause, from any thread, for
    /// as long as `owner` lives. The rank is `None` if it is in a larger group but not in this one; the cause
    /// then names it. `notify` must return quickly and call no exchange, and `owner` must not own the
    /// exchange.
    pub fn new<T: Send + Sync + 'static>(
        owner: &Arc<T>,
        notify: impl Fn(&T, Option<usize>, &str) + Send + Sync + 'static,
    ) -> Self {
        let weak = Arc::downgrade(owner);
        let notify = {
            let owner = weak.clone();
            move |rank, cause: &str| {
                if let Some(owner) = owner.upgrade() {
                    notify(&owner, rank, cause);
                }
            }
        };
        LossWatcher {
            owner: weak,
            notify: Box::new(notify),
        }
    }

    /// False once the owner is dropped: the watcher can be dropped too.
    pub fn is_live(&self) -> bool {
        self.owner.strong_count() > 0
    }

    /// Reports that `rank` of the exchange is lost.
    pub fn notify(&self, rank: Option<usize>, cause: &str) {
        (self.notify)(rank, cause);
    }

    /// The watcher for a larger group. `number` maps a rank of that group to a rank of this one. A loss
    /// outside this group is reported too, because both groups share one exchange.
    #[must_use]
    pub fn renumbered(
        self,
        number: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        let LossWatcher { owner, notify } = self;
        let notify =
            move |rank: Option<usize>, cause: &str| match rank.map(|rank| (rank, number(rank))) {
                Some((lost, None)) => {
                    notify(None, &format!("rank {lost} of the larger group: {cause}"));
                }
                Some((_, number)) => notify(number, cause),
                None => notify(None, cause),
            };
        LossWatcher {
            owner,
            notify: Box::new(notify),
        }
    }
}

impl fmt::Debug for LossWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossWatcher")
            .field("is_live", &self.is_live())
            .finish_non_exhaustive()
    }
}
