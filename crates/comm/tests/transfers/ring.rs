//! The ring all-gather without any barrier: at each step a rank forwards what it received in the step before.
//!
//! A rank runs ahead of its neighbours as far as signals and credits let it. If a token forgets which range
//! it was posted with, or a call does not wait for the readers of the one before, the values show it.

use std::sync::Arc;

use fastrand::Rng;
use warpweave_comm::p2p::{MemoryRange, Token, TransferBackend, TransferMethod};
use warpweave_symm_mem::{DevicePtr, IpcCache, Memory, Registration, SymmetricBuffer};

use super::{Rank, content, delay};

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Each rank reads from its left neighbour.
    Get,
    /// Each rank writes to its right neighbour.
    Put,
}

pub const DIRECTIONS: [Direction; 2] = [Direction::Get, Direction::Put];

/// The memory of the gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A symmetric buffer.
    Symmetric,
    /// Each rank's own memory, shared by the IPC cache.
    Registered,
}

enum Gathered<B: TransferBackend> {
    Symmetric(SymmetricBuffer<B>),
    Registered(Arc<Registration<B>>, IpcCache<B>, B::Memory),
}

impl<B: TransferBackend> Gathered<B> {
    fn new(rank: &Rank<B>, kind: Kind, bytes: usize) -> Self {
        let Rank {
            backend, exchange, ..
        } = rank;
        match kind {
            Kind::Symmetric => Gathered::Symmetric(
                SymmetricBuffer::new(backend, exchange, "gathered", bytes).unwrap(),
            ),
            Kind::Registered => {
                let cache = IpcCache::new(backend).unwrap();
                let memory = rank.memory(bytes);
                let parts = cache
                    .register(exchange.as_ref(), memory.address(), bytes)
                    .unwrap();
                Gathered::Registered(parts, cache, memory)
            }
        }
    }

    fn range(&self, rank: usize, offset: usize, bytes: usize) -> MemoryRange {
        match self {
            Gathered::Symmetric(buffer) => MemoryRange::of(buffer, rank, offset, bytes),
            Gathered::Registered(parts, ..) => MemoryRange::registered(parts, rank, offset, bytes),
        }
        .unwrap()
    }

    /// Collective, with no work in flight.
    fn close(self, rank: &Rank<B>) {
        match self {
            Gathered::Symmetric(buffer) => buffer.close(rank.exchange.as_ref()).unwrap(),
            Gathered::Registered(parts, cache, memory) => {
                drop(parts);
                cache.close(rank.exchange.as_ref()).unwrap();
                drop(memory);
            }
        }
    }
}

pub struct Ring<'a, B: TransferBackend> {
    rank: &'a Rank<B>,
    direction: Direction,
    method: TransferMethod,
    /// Bytes of a rank.
    shard: usize,
    input: B::Memory,
    gathered: Gathered<B>,
}

impl<'a, B: TransferBackend> Ring<'a, B> {
    /// Collective.
    pub fn new(
        rank: &'a Rank<B>,
        direction: Direction,
        method: TransferMethod,
        shard: usize,
    ) -> Self {
        Self::over(rank, Kind::Symmetric, direction, method, shard)
    }

    /// Collective.
    pub fn over(
        rank: &'a Rank<B>,
        kind: Kind,
        direction: Direction,
        method: TransferMethod,
        shard: usize,
    ) -> Self {
        Ring {
            rank,
            direction,
            method,
            shard,
            input: rank.memory(shard),
            gathered: Gathered::new(rank, kind, shard * rank.world()),
        }
    }

    /// The place of `owner`'s shard on `holder`.
    fn place(&self, holder: usize, owner: usize) -> MemoryRange {
        self.gathered.range(holder, owner * self.shard, self.shard)
    }

    /// Enqueues one all-gather of the input.
    fn call(&self) {
        let (me, world) = (self.rank.rank(), self.rank.world());
        let stream = &self.rank.stream;
        let own = self.place(me, me).address;
        self.rank
            .copy(stream, own, self.input.address(), self.shard);
        match self.direction {
            Direction::Get => self.by_get(me, world),
            Direction::Put => self.by_put(me, world),
        }
    }

    fn by_get(&self, me: usize, world: usize) {
        let (left, right) = ((me + world - 1) % world, (me + 1) % world);
        let p2p = &self.rank.p2p;
        let stream = &self.rank.stream;
        let from = p2p.channel(left, 0, self.method).unwrap();
        let to = p2p.channel(right, 0, self.method).unwrap();
        let mut exposed = Vec::new();
        for step in 0..world - 1 {
            let (gives, takes) = ((me + world - step) % world, (left + world - step) % world);
            // SAFETY: the buffer lives until the ranks' barrier after all work; tokens are waited for below,
            // before the next call writes what was exposed.
            let got = p2p.group(|| unsafe {
                exposed.push(to.expose(stream, self.place(me, gives))?);
                from.get(stream, self.place(left, takes), self.place(me, takes))
            });
            got.unwrap().wait(stream).unwrap();
        }
        // The last first: it completes the others.
        self.wait(exposed.into_iter().rev());
    }

    fn by_put(&self, me: usize, world: usize) {
        let (left, right) = ((me + world - 1) % world, (me + 1) % world);
        let p2p = &self.rank.p2p;
        let stream = &self.rank.stream;
        let from = p2p.channel(left, 0, self.method).unwrap();
        let to = p2p.channel(right, 0, self.method).unwrap();
        let takes = |step: usize| self.place(me, (left + world - step) % world);
        let by_nccl = self.method == TransferMethod::Nccl;
        let mut accepted: Vec<Token<B>> = Vec::new();
        if !by_nccl {
            for step in 0..world - 1 {
                // SAFETY: as in `by_get`; earlier work of the stream was the last to use the range.
                accepted.push(unsafe { from.accept(stream, takes(step)).unwrap() });
            }
        }
        let mut accepted = accepted.into_iter();
        for step in 0..world - 1 {
            let owner = (me + world - step) % world;
            // SAFETY: as above; what is put has arrived in the step before.
            let (put, arrived) = p2p
                .group(|| unsafe {
                    let put = to.put(stream, self.place(me, owner), self.place(right, owner))?;
                    let arrived = match accepted.next() {
                        Some(token) => token,
                        None => from.accept(stream, takes(step))?,
                    };
                    Ok((put, arrived))
                })
                .unwrap();
            self.wait([put, arrived].into_iter());
        }
    }

    fn wait(&self, tokens: impl Iterator<Item = Token<B>>) {
        for token in tokens {
            token.wait(&self.rank.stream).unwrap();
        }
    }

    /// `calls` all-gathers back to back, with inputs that change and ranks that are late by up to `late`
    /// microseconds; then looks at all results. Collective. With `graph`, the all-gather is captured once and
    /// replayed.
    pub fn exact(self, calls: usize, late: u64, graph: bool) {
        let Rank {
            backend, stream, ..
        } = self.rank;
        let (me, world) = (self.rank.rank(), self.rank.world());
        let whole = self.shard * world;
        let inputs = self.rank.memory(calls * self.shard);
        let results = self.rank.memory(calls * whole);
        let all: Vec<u8> = (0..calls)
            .flat_map(|call| content(me, call, self.shard))
            .collect();
        self.rank.write(inputs.address(), &all);
        let graph = graph.then(|| {
            backend
                .capture(stream, || {
                    self.call();
                    Ok::<_, warpweave_symm_mem::Error>(())
                })
                .unwrap()
        });
        self.rank.barrier();

        let mut random = Rng::with_seed(me as u64 * 7919 + whole as u64);
        for call in 0..calls {
            if late > 0 {
                backend.delay(stream, delay(&mut random, late)).unwrap();
            }
            let input = inputs.address().add(call * self.shard);
            self.rank
                .copy(stream, self.input.address(), input, self.shard);
            match &graph {
                // SAFETY: the ring owns what was captured, and drains the stream.
                Some(graph) => unsafe { backend.launch_graph(graph, stream).unwrap() },
                None => self.call(),
            }
            let result = results.address().add(call * whole);
            let gathered: DevicePtr = self.gathered.range(me, 0, whole).address;
            self.rank.copy(stream, result, gathered, whole);
        }
        self.rank.finish();
        let results = self.rank.read(results.address(), calls * whole);
        for call in 0..calls {
            for owner in 0..world {
                let got = &results[call * whole + owner * self.shard..][..self.shard];
                assert!(
                    got == content(owner, call, self.shard),
                    "{:?} by {}: rank {me} of {world}, call {call}, the {} bytes of rank {owner}",
                    self.direction,
                    self.method,
                    self.shard
                );
            }
        }
        drop(graph);
        let Ring { rank, gathered, .. } = self;
        gathered.close(rank);
    }
}
