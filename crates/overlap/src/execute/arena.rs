//! Memory that the calls of an executor share, one call after the other.
//!
//! Calls of [schedules](crate::Schedule) are closed: nobody touches a rank's memory before it has entered a
//! call or after it has left it. So all of them have their staging in one arena, each with a layout of its
//! own, and the arena is as large as the largest call needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{Backend, Exchange, Memory, SymmetricBuffer, agree};

use super::addresses::Location;
use super::error::Result;
use crate::plan::{Buffer, Placement, Plan, Role};

/// Buffers in an arena begin at multiples of this many bytes.
const ALIGNMENT: usize = 1024;

/// Bytes of an arena on each rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaSize {
    /// In memory that peers map.
    pub symmetric: usize,
    /// In memory of the rank alone.
    pub local: usize,
    /// Whether the symmetric part is bound to a multicast object.
    pub multicast: bool,
}

impl ArenaSize {
    /// What serves both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        ArenaSize {
            symmetric: self.symmetric.max(other.symmetric),
            local: self.local.max(other.local),
            multicast: self.multicast || other.multicast,
        }
    }

    /// Whether calls that need `other` can use it.
    pub fn holds(self, other: Self) -> bool {
        self.or(other) == self
    }
}

/// Where a buffer of a plan lies in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// Where the caller says.
    Operand,
    /// So many bytes into the symmetric part of the arena.
    Symmetric(usize),
    /// So many bytes into the local part of the arena.
    Local(usize),
    /// So many bytes into the schedule's own symmetric memory, where the second copy has the same place in
    /// the second half.
    Alternating(usize),
}

/// Where the buffers of a plan lie, what that needs of an arena, and bytes of each of the two halves of the
/// schedule's own memory.
pub(super) fn layout(plan: &Plan) -> (Vec<Spot>, ArenaSize, usize) {
    let (mut size, mut half) = (ArenaSize::default(), 0);
    let take = |end: &mut usize, buffer: &Buffer| {
        let start = *end;
        *end = start + buffer.bytes().next_multiple_of(ALIGNMENT);
        start
    };
    let spot = |buffer: &Buffer| match (buffer.role, buffer.placement) {
        (Role::Input | Role::Weight | Role::Output, _) => Spot::Operand,
        (Role::Staging, _) if buffer.alternating => Spot::Alternating(take(&mut half, buffer)),
        (Role::Staging, Placement::Local) => Spot::Local(take(&mut size.local, buffer)),
        (Role::Staging, placement) => {
            size.multicast |= placement == Placement::Multicast;
            Spot::Symmetric(take(&mut size.symmetric, buffer))
        }
    };
    let spots = plan.buffers.iter().map(spot).collect();
    (spots, size, half)
}

/// The memory.
#[derive(Debug)]
pub(super) struct Arena<B: Backend> {
    pub size: ArenaSize,
    multicast: Option<MulticastBuffer<B>>,
    symmetric: Option<SymmetricBuffer<B>>,
    local: Option<B::Memory>,
    /// Whether a graph has been captured that uses it.
    pub captured: AtomicBool,
}

impl<B: Backend> Arena<B> {
    /// Collective; `exchange` is that of the node.
    fn new(backend: &B, exchange: &Arc<dyn Exchange>, size: ArenaSize) -> Result<Self> {
        let local = match size.local {
            0 => Ok(None),
            bytes => backend.allocate(bytes).map(Some),
        };
        let local = agree(exchange.as_ref(), "arena", local)?;
        let symmetric = match size.symmetric {
            0 => None,
            bytes => Some(SymmetricBuffer::new(backend, exchange, "arena", bytes)?),
        };
        let multicast = match &symmetric {
            Some(buffer) if size.multicast => {
                Some(MulticastBuffer::new(backend, exchange, buffer)?)
            }
            _ => None,
        };
        Ok(Arena {
            size,
            multicast,
            symmetric,
            local,
            captured: AtomicBool::new(false),
        })
    }

    /// Where something of the arena lies; nowhere for what is not of the arena.
    pub fn location(&self, spot: Spot) -> Option<Location> {
        match spot {
            Spot::Local(offset) => {
                let memory = self.local.as_ref()?;
                Some(Location::local(memory.address()).at(offset))
            }
            Spot::Symmetric(offset) => {
                let location = Location::symmetric(self.symmetric.as_ref()?);
                let multicast = self.multicast.as_ref();
                let location = Location {
                    multicast: multicast.map_or(location.multicast, MulticastBuffer::address),
                    ..location
                };
                Some(location.at(offset))
            }
            Spot::Operand | Spot::Alternating(_) => None,
        }
    }
}

/// The arena of each node size, and those that captured graphs still use.
#[derive(Debug)]
pub(super) struct Arenas<B: Backend> {
    current: Vec<(usize, Arc<Arena<B>>)>,
    retired: Vec<Arc<Arena<B>>>,
}

impl<B: Backend> Default for Arenas<B> {
    fn default() -> Self {
        Arenas {
            current: Vec::new(),
            retired: Vec::new(),
        }
    }
}

impl<B: Backend> Arenas<B> {
    /// The arena of nodes of `node_size` ranks, if there is one.
    pub fn current(&self, node_size: usize) -> Option<&Arc<Arena<B>>> {
        let found = self.current.iter().find(|(size, _)| *size == node_size);
        found.map(|(_, arena)| arena)
    }

    /// How large that is.
    pub fn size(&self, node_size: usize) -> ArenaSize {
        self.current(node_size)
            .map_or_else(ArenaSize::default, |arena| arena.size)
    }

    /// Makes the arena of nodes of `node_size` ranks hold `size`. Where it is too small on any rank of `all`,
    /// whose local parts may differ, a larger one takes its place on all of them, as exchanges of nodes are
    /// collective over all ranks; the former stays for as long as a captured graph may use it. Collective.
    pub fn reserve(
        &mut self,
        backend: &B,
        all: &Arc<dyn Exchange>,
        (node, node_size): (&Arc<dyn Exchange>, usize),
        size: ArenaSize,
    ) -> Result<()> {
        let present = self.size(node_size);
        let holds = all.all_gather("arena.holds", &[u8::from(present.holds(size))])?;
        if holds.iter().all(|holds| *holds == [1]) {
            return Ok(());
        }
        let arena = Arena::new(backend, node, present.or(size))?;
        let arena = Arc::new(arena);
        match self.current.iter_mut().find(|(of, _)| *of == node_size) {
            None => self.current.push((node_size, arena)),
            Some((_, current)) => {
                let former = std::mem::replace(current, arena);
                if former.captured.load(Ordering::Relaxed) {
                    self.retired.push(former);
                }
            }
        }
        Ok(())
    }

    /// Bytes of the arenas in use, and of those that only captured graphs use.
    pub fn bytes(&self) -> (usize, usize) {
        let bytes = |arena: &Arc<Arena<B>>| arena.size.symmetric + arena.size.local;
        let current = self.current.iter().map(|(_, arena)| bytes(arena)).sum();
        (current, self.retired.iter().map(bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use warpweave_symm_mem::{Host, SubExchange, ThreadExchange};

    use super::*;

    /// Bytes of the arenas of two ranks, in nodes of `node_size`, that need more and more.
    fn grown(node_size: usize) -> Vec<usize> {
        let ranks = ThreadExchange::group(2).into_iter().enumerate();
        let ranks = ranks.map(|(rank, exchange)| {
            std::thread::spawn(move || {
                let all: Arc<dyn Exchange> = Arc::new(exchange);
                let first = rank / node_size * node_size;
                let node = SubExchange::new(all.clone(), first..first + node_size).unwrap();
                let node: Arc<dyn Exchange> = Arc::new(node);
                let (backend, mut arenas) = (Host::new(), Arenas::default());
                let size = |local| ArenaSize {
                    symmetric: 64,
                    local,
                    ..Default::default()
                };
                // The second is too much for rank 1 alone.
                for local in [[4096, 1024][rank], 2048] {
                    let place = (&node, node_size);
                    arenas.reserve(&backend, &all, place, size(local)).unwrap();
                    assert!(arenas.size(node_size).holds(size(local)));
                }
                all.barrier("grown").unwrap();
                arenas.bytes().0
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn ranks_with_local_parts_of_different_sizes_grow_together() {
        for node_size in [1, 2] {
            assert_eq!(grown(node_size), [64 + 4096, 64 + 2048]);
        }
    }
}
