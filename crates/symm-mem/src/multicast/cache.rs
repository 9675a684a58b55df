//! The multicast objects of a group's symmetric buffers.

use std::sync::Arc;

use parking_lot::Mutex;

use super::buffer::{MulticastBuffer, close_all};
use crate::agreement::{self, agree};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::ipc::CacheLimits;
use crate::symmetric::SymmetricBuffer;
use crate::uniform::Groups;

const HISTORY: &str = "history of the multicast cache";

/// Multicast objects by the identity of their buffer, the same on all ranks.
///
/// A fabric has few objects, so the cache keeps one while its buffer lives. All ranks destroy it together
/// when the buffer is gone, when the limits require it or when the cache is closed. What a rank holds is
/// kept: hold the [`Arc`] while stores to the object may run.
///
/// All ranks of a group make the same calls in the same order. The cache grants no permission:
/// [`guard`](super::guard) precedes every driver call.
#[derive(Debug)]
pub struct MulticastCache<B: Backend> {
    backend: B,
    entries: Mutex<Groups<u64, MulticastBuffer<B>>>,
}

impl<B: Backend> MulticastCache<B> {
    /// An empty cache. Not collective, but all ranks pass the same limits. Their bytes count each buffer's
    /// size on one rank.
    pub fn new(backend: &B, limits: CacheLimits) -> Self {
        MulticastCache {
            backend: backend.clone(),
            entries: Mutex::new(Groups::new(limits)),
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }

    /// True if there is no object.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The object over `buffer`, created if there is none. Collective. A hit costs one small exchange.
    ///
    /// # Errors
    /// Those of [`MulticastBuffer::new`]; [`Error::Disagreement`] if the ranks' histories differ.
    pub fn get(
        &self,
        exchange: &Arc<dyn Exchange>,
        buffer: &SymmetricBuffer<B>,
    ) -> Result<Arc<MulticastBuffer<B>>> {
        let mut entries = self.entries.lock();
        let mine = entries.sides(Some(&buffer.id()), |_, object| !object.is_current());
        let all = agreement::sides(exchange.as_ref(), "multicast.get", &mine)?;
        let all: Vec<_> = all.iter().collect();
        let (table, views) = entries.of(HISTORY, exchange.rank(), &all)?;
        if let Some(hit) = table.hit(&views) {
            return Ok(hit);
        }
        let bytes = buffer.stride();
        take_down(table.make_room(&views, bytes), exchange.as_ref())?;
        let object = MulticastBuffer::new(&self.backend, exchange, buffer)?;
        let object = Arc::new(object);
        table.insert(buffer.id(), bytes, object.clone());
        Ok(object)
    }

    /// Destroys every object of this group that no rank holds and returns how many. Collective.
    pub fn trim(&self, exchange: &dyn Exchange) -> Result<usize> {
        let mut entries = self.entries.lock();
        let mine = entries.sides(None, |_, _| false);
        let all = agreement::sides(exchange, "multicast.trim", &mine)?;
        let all: Vec<_> = all.iter().collect();
        let (table, views) = entries.of(HISTORY, exchange.rank(), &all)?;
        let idle = table.take_idle(&views);
        let count = idle.len();
        take_down(idle, exchange)?;
        Ok(count)
    }

    /// Destroys all objects; call it before freeing the buffers. Collective. If several groups of ranks used
    /// the cache, each [trims](MulticastCache::trim) it first.
    ///
    /// # Errors
    /// [`Error::InUse`] if a rank still holds an object. The cache is closed even so.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        let idle = match self.entries.lock().held() {
            0 => Ok(()),
            held => Err(Error::InUse {
                what: "the multicast cache",
                held,
                rank: exchange.rank(),
            }),
        };
        agree(exchange, "multicast.close", idle)?;
        self.trim(exchange).map(drop)
    }
}

/// Destroys objects that no rank held at the last exchange. None can be held since: only the cache hands them
/// out, and it is locked.
fn take_down<B: Backend>(
    objects: Vec<Arc<MulticastBuffer<B>>>,
    exchange: &dyn Exchange,
) -> Result<()> {
    if objects.is_empty() {
        return Ok(());
    }
    close_all(
        objects.into_iter().filter_map(Arc::into_inner).collect(),
        exchange,
    )
}
