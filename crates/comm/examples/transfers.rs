//! Time and bandwidth of get and put between two ranks, by method: two GPUs where there are two, else the
//! host backend.
//!
//! ```text
//! cargo run --release -p warpweave-comm --features nvcc --example transfers [BLOCKS]
//! ```
//!
//! `ready`: the peer has granted all transfers in advance, so they follow each other; `turns`: the peer
//! grants each after the one before has ended; `both`: as `ready`, in both directions at once, GB/s of each.
//! Times are medians, taken on the device of the rank that copies. `BLOCKS` limits the grids.

use std::sync::Arc;
use std::time::Duration;

use warpweave_comm::p2p::{
    Channel, MemoryRange, Options, PointToPoint, Role, TransferBackend, TransferMethod,
};
use warpweave_comm::{CommError, NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::{Cuda, Exchange, Host, SymmetricBuffer, ThreadExchange};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const REPETITIONS: usize = 7;
const WARM_UP: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Pace {
    Ready,
    Turns,
    Both,
}

struct Rank<B: TransferBackend> {
    backend: B,
    exchange: Arc<dyn Exchange>,
    p2p: PointToPoint<B>,
    stream: B::Stream,
    source: SymmetricBuffer<B>,
    target: SymmetricBuffer<B>,
}

impl<B: TransferBackend> Rank<B> {
    /// Collective.
    fn new(backend: B, exchange: Arc<dyn Exchange>, most: usize) -> Result<Self, Failure> {
        let blocks = std::env::args().nth(1).map(|n| n.parse()).transpose()?;
        let options = Options {
            max_blocks: blocks,
            ..Options::default()
        };
        Ok(Rank {
            p2p: PointToPoint::new(&backend, &exchange, "transfers", options)?,
            stream: backend.stream(Default::default())?,
            source: SymmetricBuffer::new(&backend, &exchange, "source", most)?,
            target: SymmetricBuffer::new(&backend, &exchange, "target", most)?,
            backend,
            exchange,
        })
    }

    /// The time of one transfer, on a rank that copies.
    fn measure(
        &self,
        transport: TransferMethod,
        role: Role,
        bytes: usize,
        pace: Pace,
    ) -> Result<Option<Duration>, Failure> {
        let channel = self.p2p.channel(1 - self.exchange.rank(), 0, transport)?;
        let copies = self.exchange.rank() == 1 || pace == Pace::Both;
        let offers = self.exchange.rank() == 0 || pace == Pace::Both;
        let count = if bytes <= 4 << 20 { 24 } else { 6 };
        let mut times = Vec::new();
        for _ in 0..REPETITIONS {
            self.exchange.barrier("aligned")?;
            // After the delay everything is enqueued, so that no launch is waited for; the copying rank
            // starts after the offers.
            let late = if copies { 5 } else { 2 };
            self.backend
                .delay(&self.stream, Duration::from_millis(late))?;
            let (from, to) = (self.backend.event()?, self.backend.event()?);
            let mut offered = Vec::new();
            let all = WARM_UP + count;
            if offers && pace != Pace::Turns {
                for _ in 0..all {
                    offered.push(self.offer(&channel, role, bytes)?);
                }
            }
            for i in 0..all {
                if copies && i == WARM_UP {
                    self.backend.record(&from, &self.stream)?;
                }
                if offers && pace == Pace::Turns {
                    self.offer(&channel, role, bytes)?.wait(&self.stream)?;
                }
                if copies {
                    self.copy(&channel, role, bytes)?.wait(&self.stream)?;
                }
            }
            self.backend.record(&to, &self.stream)?;
            for token in offered {
                token.wait(&self.stream)?;
            }
            self.backend.synchronize(&self.stream)?;
            self.p2p.check(&self.stream)?;
            if copies {
                times.push(self.backend.elapsed(&from, &to)? / count as u32);
            }
        }
        times.sort();
        Ok(times.get(times.len() / 2).copied())
    }

    fn range(
        &self,
        buffer: &SymmetricBuffer<B>,
        rank: usize,
        bytes: usize,
    ) -> Result<MemoryRange, CommError> {
        MemoryRange::of(buffer, rank, 0, bytes)
    }

    fn offer(
        &self,
        channel: &Channel<B>,
        role: Role,
        bytes: usize,
    ) -> Result<warpweave_comm::p2p::Token<B>, CommError> {
        let me = self.exchange.rank();
        // SAFETY: the buffers live until all work has ended; what the bytes are does not matter here.
        unsafe {
            match role {
                Role::Get => channel.expose(&self.stream, self.range(&self.source, me, bytes)?),
                _ => channel.accept(&self.stream, self.range(&self.target, me, bytes)?),
            }
        }
    }

    fn copy(
        &self,
        channel: &Channel<B>,
        role: Role,
        bytes: usize,
    ) -> Result<warpweave_comm::p2p::Token<B>, CommError> {
        let (me, peer) = (self.exchange.rank(), channel.peer());
        let from = |rank| self.range(&self.source, rank, bytes);
        let to = |rank| self.range(&self.target, rank, bytes);
        // SAFETY: as in `offer`.
        unsafe {
            match role {
                Role::Get => channel.get(&self.stream, from(peer)?, to(me)?),
                _ => channel.put(&self.stream, from(me)?, to(peer)?),
            }
        }
    }

    fn table(&self, transports: &[TransferMethod], sizes: &[usize]) -> Result<(), Failure> {
        let last = self.exchange.rank() == 1;
        if last {
            println!(
                "{:<12} {:<4} {:>11} {:>20} {:>20} {:>9}",
                "transport", "", "bytes", "ready", "turns", "both"
            );
        }
        for &transport in transports {
            for role in [Role::Get, Role::Put] {
                for &bytes in sizes {
                    let measure = |pace| self.measure(transport, role, bytes, pace);
                    let ready = measure(Pace::Ready)?;
                    let turns = measure(Pace::Turns)?;
                    // NCCL's sends occupy the stream that the receives are to be on.
                    let both = match transport {
                        TransferMethod::Nccl => None,
                        _ => measure(Pace::Both)?,
                    };
                    if let (true, Some(ready), Some(turns)) = (last, ready, turns) {
                        let rate =
                            |time: Duration| bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9;
                        let cell = |time: Duration| {
                            format!(
                                "{:.2} us {:>7.2} GB/s",
                                time.as_secs_f64() * 1e6,
                                rate(time)
                            )
                        };
                        let both = both.map(|time| format!("{:.2}", rate(time)));
                        println!(
                            "{transport:<12} {:<4} {bytes:>11} {:>20} {:>20} {:>9}",
                            role.name(),
                            cell(ready),
                            cell(turns),
                            both.unwrap_or_else(|| "-".into())
                        );
                    }
                }
            }
        }
        self.exchange.barrier("end")?;
        Ok(())
    }
}

fn two_ranks(
    body: impl Fn(Arc<dyn Exchange>) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadExchange::group(2)
            .into_iter()
            .map(|exchange| {
                let body = &body;
                scope.spawn(move || body(Arc::new(exchange)))
            })
            .collect();
        ranks
            .into_iter()
            .try_for_each(|rank| rank.join().expect("no rank panics"))
    })
}

fn main() -> Result<(), Failure> {
    if Cuda::device_count().is_ok_and(|devices| devices >= 2) {
        let sizes: Vec<usize> = (0..9).map(|i| 4096 << (2 * i)).collect();
        let library = NcclLibrary::load().ok();
        return two_ranks(|exchange| {
            let rank = Rank::new(
                Cuda::new(exchange.rank())?,
                exchange,
                sizes[sizes.len() - 1],
            )?;
            let mut transports = vec![TransferMethod::CopyEngine, TransferMethod::Sm];
            if rank.backend.compute_capability().0 == 9 {
                transports.push(TransferMethod::Tma);
            }
            if let Some(library) = &library {
                rank.backend.bind()?;
                let options = NcclOptions::default();
                let nccl = NcclComm::init(library, rank.exchange.as_ref(), options)?;
                rank.p2p.attach_nccl(nccl)?;
                transports.push(TransferMethod::Nccl);
            }
            rank.table(&transports, &sizes)
        });
    }
    let sizes = [4096, 64 << 10, 1 << 20];
    two_ranks(|exchange| {
        let rank = Rank::new(Host::new(), exchange, sizes[sizes.len() - 1])?;
        rank.table(&[TransferMethod::CopyEngine, TransferMethod::Sm], &sizes)
    })
}
