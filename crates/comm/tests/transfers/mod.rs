//! Transfers between ranks, and the checks that every backend has to pass.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod bytes;
pub mod faults;
pub mod flood;
pub mod ring;
pub mod streams;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use warpweave_comm::p2p::{MemoryRange, Options, PointToPoint, TransferBackend, TransferMethod};
use warpweave_symm_mem::{DevicePtr, Exchange, Memory, ThreadExchange};

/// The methods that need no library.
pub const OWN: [TransferMethod; 3] = [
    TransferMethod::CopyEngine,
    TransferMethod::Sm,
    TransferMethod::Tma,
];

/// One rank of a group.
pub struct Rank<B: TransferBackend> {
    pub backend: B,
    pub exchange: Arc<dyn Exchange>,
    pub p2p: PointToPoint<B>,
    pub stream: B::Stream,
}

impl<B: TransferBackend> Rank<B> {
    /// Collective.
    pub fn new(backend: B, exchange: Arc<dyn Exchange>, options: Options) -> Self {
        Rank {
            p2p: PointToPoint::new(&backend, &exchange, "transfers", options).unwrap(),
            stream: backend.stream(Default::default()).unwrap(),
            backend,
            exchange,
        }
    }

    pub fn rank(&self) -> usize {
        self.exchange.rank()
    }

    pub fn world(&self) -> usize {
        self.exchange.world()
    }

    /// Until all have come here: calls that wait for a whole device keep away from transfers that wait for a
    /// rank.
    pub fn barrier(&self) {
        self.exchange.barrier("all").unwrap();
    }

    /// Memory of this rank alone.
    pub fn memory(&self, bytes: usize) -> B::Memory {
        self.backend.allocate(bytes.max(1)).unwrap()
    }

    pub fn mine(&self, memory: &B::Memory, offset: usize, bytes: usize) -> MemoryRange {
        assert!(offset + bytes <= memory.bytes());
        MemoryRange::new(self.rank(), memory.address().add(offset), bytes)
    }

    pub fn write(&self, at: DevicePtr, bytes: &[u8]) {
        // SAFETY: the tests write to live memory that no work uses.
        unsafe { self.backend.upload(&self.stream, at, bytes).unwrap() }
    }

    pub fn read(&self, at: DevicePtr, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        // SAFETY: the tests read live memory.
        unsafe {
            self.backend.download(&self.stream, at, &mut read).unwrap();
        }
        read
    }

    /// Copies on the rank's own device, in stream order.
    pub fn copy(&self, stream: &B::Stream, to: DevicePtr, from: DevicePtr, bytes: usize) {
        // SAFETY: the tests copy between live ranges that no unordered work uses.
        unsafe { self.backend.copy(stream, to, from, bytes).unwrap() }
    }

    /// All work has ended, without a fault.
    pub fn finish(&self) {
        self.backend.synchronize(&self.stream).unwrap();
        self.p2p.check(&self.stream).unwrap();
    }
}

/// Runs `body` on a thread for each rank; a rank that panics fails the test.
pub fn ranks<B: TransferBackend>(
    world: usize,
    options: Options,
    backend: impl Fn(usize) -> B + Sync,
    body: impl Fn(&Rank<B>) + Sync,
) {
    std::thread::scope(|scope| {
        for exchange in ThreadExchange::group(world) {
            let (backend, body) = (&backend, &body);
            scope.spawn(move || {
                let backend = backend(exchange.rank());
                let rank = Rank::new(backend, Arc::new(exchange), options);
                body(&rank);
                // Nothing is freed while a peer may wait for this rank.
                rank.backend.synchronize(&rank.stream).unwrap();
                rank.barrier();
            });
        }
    });
}

/// Below `bound` microseconds.
pub fn delay(random: &mut Rng, bound: u64) -> Duration {
    Duration::from_micros(random.u64(..bound))
}

/// The bytes of `rank` in `call`, different in every byte from those of the calls and ranks around.
pub fn content(rank: usize, call: usize, bytes: usize) -> Vec<u8> {
    let mut random = Rng::with_seed((rank as u64 + 1) << 32 | call as u64);
    let step = 1 + 2 * random.u8(..100);
    let first = (rank * 67 + call * 31) as u8;
    (0..bytes)
        .map(|i| first.wrapping_add((i as u8).wrapping_mul(step)))
        .collect()
}
