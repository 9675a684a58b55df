//! A pool of symmetric memory with stable addresses, whose reuse exchanges nothing.
//!
//! The pool allocates chunks, which are symmetric buffers, and hands out blocks of size classes. A block that
//! was freed is handed out again with the same addresses on all ranks, for the price of a lock.
//!
//! # Why no exchange is needed
//!
//! All ranks make the same calls in the same order, so the pool is in the same state on all ranks and each
//! takes the same block for the same request. The order in which blocks are freed between two calls does not
//! matter, because the lowest free block is taken; but the same blocks must have been freed. Every exchange
//! that creates a chunk also compares a digest of the history. A difference is an error that names the rank.
//! [`SymmetricPool::check`] compares at any other time.
//!
//! # One group
//!
//! A pool has memory of one [group](Exchange::group_id) of ranks. Make a pool for each group: a block of one
//! group has the addresses of other ranks than a block of another.
//!
//! # Stream order
//!
//! A block belongs to the stream that it was allocated for. Dropping a [`PoolBuffer`] does not wait: the work
//! on its stream at that time runs before anything that the next user enqueues on its own stream, by stream
//! order or by an event.
//!
//! The pool adds no order between ranks. A peer may write to a block's new user as soon as it has the block
//! itself. So, as with any reused symmetric buffer, the first write to a peer's part needs that peer's
//! credit: calls that begin with a wait of lag 1 or end with a handshake have it. Allocate outside of
//! captures, because a capture cannot wait for an event that it did not record.
//!
//! # Alignment
//!
//! Blocks below the size of a chunk (2 MiB, or the granularity of the backend if that is larger) are powers
//! of two from 512 bytes. They are aligned to their size or to the granularity, whichever is smaller. Larger
//! blocks are aligned to the granularity. So every block is aligned to at least 512 bytes on all ranks.

mod block;
mod class;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::agreement::{agree, require_same};
use crate::backend::{Backend, DevicePtr};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::ipc::write_table;
use crate::symmetric::SymmetricBuffer;
use crate::uniform::Digest;

pub use block::PoolBuffer;
pub use class::SMALLEST_BLOCK;

use block::{Chunk, Place};
use class::Class;

/// Reusable symmetric memory. The [module](self) says what all ranks must do alike.
#[derive(Debug)]
pub struct SymmetricPool<B: Backend> {
    backend: B,
    shared: Arc<Shared<B>>,
    /// Locked for a whole call, so that calls of several threads do not interleave.
    calls: Mutex<Calls>,
}

#[derive(Debug)]
struct Calls {
    history: Digest,
    hits: u64,
    misses: u64,
}

/// State for freeing blocks, locked only briefly.
#[derive(Debug)]
pub(crate) struct Shared<B: Backend> {
    name: String,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B: Backend> {
    chunks: BTreeMap<usize, Arc<Chunk<B>>>,
    next_chunk: usize,
    /// Free blocks by class size, each with the stream of its last user.
    free: HashMap<usize, BTreeMap<Place, Option<B::Stream>>>,
    live: usize,
}

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of each rank's memory in chunks.
    pub reserved: usize,
    /// Chunks.
    pub chunks: usize,
    /// Allocated blocks.
    pub live: usize,
    /// Allocations served by an existing block.
    pub hits: u64,
    /// Allocations that created a chunk.
    pub misses: u64,
}

impl<B: Backend> SymmetricPool<B> {
    /// An empty pool. Not collective; all ranks pass the same `name`, which their exchanges compare.
    pub fn new(backend: &B, name: &str) -> Self {
        SymmetricPool {
            backend: backend.clone(),
            shared: Arc::new(Shared {
                name: name.into(),
                state: Mutex::new(State {
                    chunks: BTreeMap::new(),
                    next_chunk: 0,
                    free: HashMap::new(),
                    live: 0,
                }),
            }),
            calls: Mutex::new(Calls {
                history: Digest::START,
                hits: 0,
                misses: 0,
            }),
        }
    }

    /// Allocates `bytes` on each rank for work on `stream`. All ranks make the same calls in the same order;
    /// nothing is exchanged if a block of the class is free. New memory is zeroed; reused memory holds what
    /// its last user left.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the pool has memory of another group than that of `exchange`, as for its
    /// other collective calls; [`Error::Disagreement`] if a chunk is needed and a rank's history differs;
    /// those of [`SymmetricBuffer::new`]. Those of a new chunk are errors on all ranks, and leave the pool
    /// unchanged. Where a free block is reused, `stream` may fail to wait for its last user, on this rank
    /// alone: the block is free again then, with its last user's stream. The other ranks drop the block that
    /// they got before the next call.
    pub fn allocate(
        &self,
        exchange: &Arc<dyn Exchange>,
        stream: &B::Stream,
        bytes: usize,
    ) -> Result<PoolBuffer<B>> {
        let mut calls = self.calls.lock();
        let class =
            Class::of(bytes, self.backend.granularity()).ok_or_else(|| Error::InvalidArgument {
                what: "bytes of a block",
                why: format!("{bytes} are beyond the address space"),
            })?;
        self.require_own_group(exchange.as_ref())?;
        let taken = self.shared.state.lock().take(class);
        let (place, last) = match taken {
            Some(taken) => {
                calls.hits += 1;
                taken
            }
            None => {
                self.grow(exchange, &calls, class, bytes)?;
                calls.misses += 1;
                let taken = self.shared.state.lock().take(class);
                taken.ok_or_else(|| Error::InvalidArgument {
                    what: "pool",
                    why: "a new chunk holds no block".into(),
                })?
            }
        };
        let digest = [bytes, place.chunk, place.block].map(|n| n as u64);
        calls.history.add(&digest);
        let buffer = PoolBuffer {
            shared: self.shared.clone(),
            chunk: self.shared.state.lock().chunks[&place.chunk].clone(),
            place,
            bytes,
            stream: last.clone().unwrap_or_else(|| stream.clone()),
        };
        let mut buffer = buffer;
        if last.is_some() {
            buffer.move_to(&self.backend, stream)?;
        }
        Ok(buffer)
    }

    fn grow(
        &self,
        exchange: &Arc<dyn Exchange>,
        calls: &Calls,
        class: Class,
        bytes: usize,
    ) -> Result<()> {
        self.same_history(exchange.as_ref(), calls, &format!("{bytes} bytes wanted"))?;
        let name = &self.shared.name;
        let buffer = SymmetricBuffer::new(&self.backend, exchange, name, class.chunk())?;
        let addresses: Vec<DevicePtr> = (0..class.blocks)
            .flat_map(|block| {
                let bases = buffer.addresses().into_iter();
                bases.map(move |base| base.add(block * class.block))
            })
            .collect();
        let table = write_table(&self.backend, &addresses);
        let table = agree(exchange.as_ref(), "pool.table", table)?;
        self.shared.state.lock().add(
            Chunk {
                table,
                buffer,
                block: class.block,
            },
            class,
        );
        Ok(())
    }

    /// Checks that all ranks have made the same calls. Collective.
    ///
    /// # Errors
    /// [`Error::Disagreement`] with the rank whose history differs.
    pub fn check(&self, exchange: &dyn Exchange) -> Result<()> {
        let calls = self.calls.lock();
        self.same_history(exchange, &calls, "check")
    }

    /// Addresses of another group would be taken for those of ranks of this one.
    fn require_own_group(&self, exchange: &dyn Exchange) -> Result<()> {
        match self.shared.state.lock().chunks.values().next() {
            Some(chunk) if chunk.buffer.group_id() != exchange.group_id() => {
                Err(Error::InvalidArgument {
                    what: "exchange of a pool",
                    why: format!(
                        "the memory of `{}` is that of other ranks: make a pool for each group",
                        self.shared.name
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    fn same_history(&self, exchange: &dyn Exchange, calls: &Calls, call: &str) -> Result<()> {
        self.require_own_group(exchange)?;
        let state = self.shared.state.lock();
        let arguments = format!(
            "`{}`, granularity {}, {} chunks, {} blocks given out, history {:016x}: {call}",
            self.shared.name,
            self.backend.granularity(),
            state.chunks.len(),
            state.live,
            calls.history.0
        );
        drop(state);
        require_same(exchange, "pool", &arguments)
    }

    /// Frees the chunks without allocated blocks, after the work of their last users. Returns the number of
    /// bytes freed on each rank. Collective.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank's history differs; errors of waiting for the streams, on any rank:
    /// then no rank frees anything.
    pub fn trim(&self, exchange: &dyn Exchange) -> Result<usize> {
        let mut calls = self.calls.lock();
        self.same_history(exchange, &calls, "trim")?;
        let (idle, streams) = self.shared.state.lock().idle();
        let done = streams
            .iter()
            .try_for_each(|stream| self.backend.synchronize(stream));
        agree(exchange, "pool.trim", done)?;
        let freed = self.shared.state.lock().remove(&idle);
        calls.history.add(&[u64::MAX, idle.len() as u64]);
        let bytes = freed.iter().map(|chunk| chunk.buffer.stride()).sum();
        drop(freed);
        Ok(bytes)
    }

    /// Frees the pool on all ranks. Collective.
    ///
    /// # Errors
    /// [`Error::InUse`] if a rank still holds a block; otherwise as [`SymmetricPool::trim`]. The pool is
    /// closed even so; held blocks stay usable.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        self.require_own_group(exchange)?;
        let live = self.stats().live;
        let idle = match live {
            0 => Ok(()),
            held => Err(Error::InUse {
                what: "a pool",
                held,
                rank: exchange.rank(),
            }),
        };
        agree(exchange, "pool.close", idle)?;
        self.trim(exchange).map(drop)
    }

    /// The current statistics.
    pub fn stats(&self) -> PoolStats {
        let calls = self.calls.lock();
        let state = self.shared.state.lock();
        PoolStats {
            reserved: state.chunks.values().map(|c| c.buffer.stride()).sum(),
            chunks: state.chunks.len(),
            live: state.live,
            hits: calls.hits,
            misses: calls.misses,
        }
    }
}

impl<B: Backend> Shared<B> {
    fn give_back(&self, place: Place, stream: B::Stream) {
        let mut state = self.state.lock();
        state.live -= 1;
        if let Some(class) = state.chunks.get(&place.chunk).map(|chunk| chunk.block) {
            let free = state.free.entry(class).or_default();
            free.insert(place, Some(stream));
        }
    }
}

impl<B: Backend> State<B> {
    fn take(&mut self, class: Class) -> Option<(Place, Option<B::Stream>)> {
        let taken = self.free.get_mut(&class.block)?.pop_first()?;
        self.live += 1;
        Some(taken)
    }

    fn add(&mut self, chunk: Chunk<B>, class: Class) {
        let number = self.next_chunk;
        self.next_chunk += 1;
        let free = self.free.entry(class.block).or_default();
        for block in 0..class.blocks {
            let place = Place {
                chunk: number,
                block,
            };
            free.insert(place, None);
        }
        self.chunks.insert(number, Arc::new(chunk));
    }

    /// Chunks whose blocks are all free, and the streams of their last users.
    fn idle(&self) -> (Vec<usize>, Vec<B::Stream>) {
        let mut idle = Vec::new();
        let mut streams = Vec::new();
        for (&number, chunk) in &self.chunks {
            let blocks = chunk.buffer.bytes() / chunk.block;
            let free = self.free.get(&chunk.block).into_iter().flatten();
            let free: Vec<_> = free.filter(|(place, _)| place.chunk == number).collect();
            if free.len() == blocks {
                idle.push(number);
                streams.extend(free.into_iter().filter_map(|(_, stream)| stream.clone()));
            }
        }
        (idle, streams)
    }

    fn remove(&mut self, numbers: &[usize]) -> Vec<Arc<Chunk<B>>> {
        for free in self.free.values_mut() {
            free.retain(|place, _| !numbers.contains(&place.chunk));
        }
        numbers
            .iter()
            .filter_map(|number| self.chunks.remove(number))
            .collect()
    }
}

/// Makes later work on `to` run after the work now on `from`.
fn order<B: Backend>(backend: &B, from: &B::Stream, to: &B::Stream) -> Result<()> {
    if backend.is_same_stream(from, to) {
        return Ok(());
    }
    let event = backend.event()?;
    backend.record(&event, from)?;
    backend.wait_event(to, &event)
}
