//! The pool of symmetric memory on the host backend, ranks as threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::faulty::{Faulty, Step, all_blame, ranks};
use warpweave_symm_mem::pool::SMALLEST_BLOCK;
use warpweave_symm_mem::{
    Backend, DevicePtr, Error, Exchange, ExchangeError, Host, SubExchange, SymmetricPool,
    ThreadExchange,
};

fn read(device: &Faulty, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let stream = device.setup_stream().unwrap();
    let mut out = vec![0; bytes];
    // SAFETY: the tests pass ranges of live blocks.
    unsafe { device.download(&stream, at, &mut out).unwrap() };
    out
}

fn write(device: &Faulty, at: DevicePtr, bytes: &[u8]) {
    let stream = device.setup_stream().unwrap();
    // SAFETY: the tests pass ranges of live blocks.
    unsafe { device.upload(&stream, at, bytes).unwrap() };
}

#[test]
fn every_rank_sees_every_part_of_every_block() {
    ranks(3, |exchange| {
        let device = Faulty::new();
        let stream = device.stream(Default::default()).unwrap();
        let pool = SymmetricPool::new(&device, "pool");
        let me = exchange.rank();
        let sizes = [1, 512, 513, 100_000, 3 << 20, 7_000_001];
        let blocks: Vec<_> = sizes
            .iter()
            .map(|&bytes| pool.allocate(&exchange, &stream, bytes).unwrap())
            .collect();
        for (i, block) in blocks.iter().enumerate() {
            assert_eq!(
                (block.rank(), block.world(), block.bytes()),
                (me, 3, sizes[i])
            );
            for address in block.addresses() {
                assert!(
                    address.0.is_multiple_of(SMALLEST_BLOCK as u64),
                    "{address:?}"
                );
            }
            let table = read(&device, block.peer_table(), 24);
            for (address, entry) in block.addresses().iter().zip(table.chunks(8)) {
                assert_eq!(entry, address.0.to_ne_bytes());
            }
            let last = block.range((me + 1) % 3, sizes[i] - 1, 1).unwrap();
            write(&device, last, &[(10 * i + me) as u8]);
            assert!(block.range(0, sizes[i], 1).is_err() && block.range(3, 0, 1).is_err());
            let part = block
                .symmetric()
                .range(1, block.offset(), sizes[i])
                .unwrap();
            assert_eq!(part, block.peer(1));
        }
        exchange.barrier("written").unwrap();
        for (i, block) in blocks.iter().enumerate() {
            for peer in 0..3 {
                let last = read(&device, block.range(peer, sizes[i] - 1, 1).unwrap(), 1);
                assert_eq!(last, [(10 * i + (peer + 2) % 3) as u8]);
            }
        }
        exchange.barrier("read").unwrap();
        drop(blocks);
        assert!(pool.trim(exchange.as_ref()).unwrap() >= 12 << 20);
        assert_eq!(pool.stats().chunks, 0);
        pool.close(exchange.as_ref()).unwrap();
    });
}

/// Counts the calls of an exchange.
struct Counted(ThreadExchange, Arc<AtomicUsize>);

impl Exchange for Counted {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.all_gather(tag, bytes)
    }
    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<Vec<Vec<std::os::fd::OwnedFd>>, ExchangeError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.all_gather_fds(tag, fds)
    }
}

#[test]
fn reuse_exchanges_nothing_and_keeps_the_addresses() {
    let calls = Arc::new(AtomicUsize::new(0));
    let one = ThreadExchange::group(1).remove(0);
    let exchange: Arc<dyn Exchange> = Arc::new(Counted(one, calls.clone()));
    let device = Host::new();
    let stream = device.stream(Default::default()).unwrap();
    let pool = SymmetricPool::new(&device, "pool");
    let first = pool.allocate(&exchange, &stream, 5000).unwrap().local();
    let cold = calls.load(Ordering::Relaxed);
    for bytes in (4097..8192).step_by(16) {
        let again = pool.allocate(&exchange, &stream, bytes).unwrap();
        assert_eq!(again.local(), first);
    }
    // A chunk of small blocks serves many at once.
    let many: Vec<_> = (0..256)
        .map(|_| pool.allocate(&exchange, &stream, 8192).unwrap())
        .collect();
    assert_eq!(calls.load(Ordering::Relaxed), cold);
    let stats = pool.stats();
    assert_eq!((stats.misses, stats.chunks, stats.live), (1, 1, 256));
    assert_eq!(stats.hits, 256 + 256);
    drop(pool.allocate(&exchange, &stream, 8192).unwrap());
    assert!(calls.load(Ordering::Relaxed) > cold);
    drop(many);
    assert_eq!(pool.stats().live, 0);
    pool.close(exchange.as_ref()).unwrap();
}

#[test]
fn random_histories_give_the_same_blocks_on_all_ranks() {
    for seed in 1..5u64 {
        let offsets = ranks(3, move |exchange| {
            let device = Faulty::new();
            let stream = device.stream(Default::default()).unwrap();
            let pool = SymmetricPool::new(&device, "pool");
            let mut state = seed;
            let mut next = |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                (state >> 33) % below
            };
            let mut live = Vec::new();
            let mut places = Vec::new();
            for step in 0..300u64 {
                let bytes = (1usize << next(20)) + next(700) as usize;
                let mut gone = Vec::new();
                while live.len() > 6 {
                    gone.push(live.remove(next(live.len() as u64) as usize));
                }
                // The order in which blocks are freed between two calls differs between ranks.
                if exchange.rank() == 1 {
                    gone.reverse();
                }
                drop(gone);
                let block = pool.allocate(&exchange, &stream, bytes).unwrap();
                let stamp = (step as usize * 3 + exchange.rank()) as u8;
                write(&device, block.local(), &[stamp]);
                exchange.barrier("written").unwrap();
                for peer in 0..3 {
                    let stamp = (step as usize * 3 + peer) as u8;
                    assert_eq!(read(&device, block.peer(peer), 1), [stamp], "step {step}");
                }
                exchange.barrier("read").unwrap();
                places.push(block.offset());
                live.push(block);
                if next(40) == 0 {
                    pool.trim(exchange.as_ref()).unwrap();
                }
                if next(10) == 0 {
                    live.truncate(2);
                }
            }
            pool.check(exchange.as_ref()).unwrap();
            live.clear();
            pool.close(exchange.as_ref()).unwrap();
            places
        });
        assert!(offsets.iter().all(|o| *o == offsets[0]), "seed {seed}");
    }
}

#[test]
fn the_next_user_runs_after_the_last_even_on_another_stream() {
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let device = Faulty::new();
    let (a, b) = (
        device.stream(Default::default()).unwrap(),
        device.stream(Default::default()).unwrap(),
    );
    let pool = SymmetricPool::new(&device, "pool");
    let first = pool.allocate(&exchange, &a, 100).unwrap();
    let at = first.local();
    device.delay(&a, Duration::from_millis(100)).unwrap();
    // SAFETY: the memory is the pool's, which outlives the streams' work, here and below.
    unsafe { device.fill(&a, at, 1, 100).unwrap() };
    drop(first);
    let second = pool.allocate(&exchange, &b, 100).unwrap();
    assert_eq!(second.local(), at);
    // SAFETY: as above.
    unsafe { device.fill(&b, at, 2, 100).unwrap() };
    device.synchronize(&a).unwrap();
    device.synchronize(&b).unwrap();
    assert_eq!(read(&device, at, 100), [2; 100]);
    // A block that moved is ordered by the stream that it moved to.
    let mut second = second;
    second.move_to(&device, &a).unwrap();
    assert!(device.is_same_stream(second.stream(), &a));
    device.delay(&a, Duration::from_millis(100)).unwrap();
    // SAFETY: as above.
    unsafe { device.fill(&a, at, 3, 100).unwrap() };
    drop(second);
    let third = pool.allocate(&exchange, &b, 100).unwrap();
    // SAFETY: as above.
    unsafe { device.fill(&b, third.local(), 4, 100).unwrap() };
    device.synchronize(&b).unwrap();
    assert_eq!(read(&device, at, 100), [4; 100]);
}

#[test]
fn ranks_whose_histories_came_apart_are_told_and_named() {
    let errors = ranks(3, |exchange| {
        let device = Faulty::new();
        let stream = device.stream(Default::default()).unwrap();
        let pool = SymmetricPool::new(&device, "pool");
        drop(pool.allocate(&exchange, &stream, 100).unwrap());
        if exchange.rank() == 2 {
            // A call that the others do not make, and that needs no exchange.
            drop(pool.allocate(&exchange, &stream, 100).unwrap());
        }
        pool.check(exchange.as_ref()).unwrap_err();
        pool.allocate(&exchange, &stream, 1 << 20).unwrap_err()
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let Error::Disagreement {
            peer, mine, theirs, ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(*peer, if rank == 2 { 0 } else { 2 }, "{error}");
        assert!(
            mine.contains("history") && theirs.contains("history"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_keeps_a_block_is_told_apart() {
    let errors = ranks(2, |exchange| {
        let device = Faulty::new();
        let stream = device.stream(Default::default()).unwrap();
        let pool = SymmetricPool::new(&device, "pool");
        let block = pool.allocate(&exchange, &stream, 100).unwrap();
        let kept = (exchange.rank() == 1).then_some(block);
        let trim = pool.trim(exchange.as_ref()).unwrap_err();
        assert!(matches!(trim, Error::Disagreement { .. }), "{trim}");
        let error = pool.close(exchange.as_ref()).unwrap_err();
        if let Some(kept) = kept {
            write(&device, kept.local(), &[1]);
        }
        error
    });
    assert!(
        matches!(errors[0], Error::PeerFailed { rank: 1, .. }),
        "{}",
        errors[0]
    );
    assert!(
        matches!(
            errors[1],
            Error::InUse {
                held: 1,
                rank: 1,
                ..
            }
        ),
        "{}",
        errors[1]
    );
}

#[test]
fn a_step_that_fails_on_one_rank_fails_on_all_and_leaves_the_pool_as_it_was() {
    let steps = [
        Step::CreateSegment,
        Step::MapSegments,
        Step::Allocate,
        Step::Upload,
    ];
    for culprit in 0..3 {
        for step in steps {
            let outcomes = ranks(3, move |exchange| {
                let device = Faulty::new();
                let stream = device.stream(Default::default()).unwrap();
                let pool = SymmetricPool::new(&device, "pool");
                device.fail((exchange.rank() == culprit).then_some(step));
                let outcome = pool.allocate(&exchange, &stream, 100).map(drop);
                device.fail(None);
                assert_eq!(pool.stats(), Default::default());
                let block = pool.allocate(&exchange, &stream, 100).unwrap();
                drop(block);
                // Nothing is freed anywhere if one rank cannot wait for its work.
                device.fail((exchange.rank() == culprit).then_some(Step::Synchronize));
                pool.trim(exchange.as_ref()).unwrap_err();
                device.fail(None);
                assert_eq!(pool.stats().chunks, 1);
                pool.close(exchange.as_ref()).unwrap();
                outcome
            });
            all_blame(culprit, step, outcomes);
        }
    }
}

/// Pairs of neighbours and pairs across them, as of tensor and data parallelism.
#[test]
fn memory_of_one_group_is_not_handed_to_another() {
    ranks(4, |exchange| {
        let device = Faulty::new();
        let stream = device.stream(Default::default()).unwrap();
        let me = exchange.rank();
        let group = |members: [usize; 2]| -> Arc<dyn Exchange> {
            Arc::new(SubExchange::new(exchange.clone(), members).unwrap())
        };
        let (own, other) = (
            group([me / 2 * 2, me / 2 * 2 + 1]),
            group([me % 2, me % 2 + 2]),
        );
        let refused = |error| {
            let Error::InvalidArgument { why, .. } = &error else {
                panic!("{error}")
            };
            assert!(why.contains("make a pool for each group"), "{error}");
        };
        let pool = SymmetricPool::new(&device, "pool");
        let block = pool.allocate(&own, &stream, 1000).unwrap();
        assert_eq!(block.symmetric().group_id(), own.group_id());
        // A block of the class is free, and none of the next class.
        refused(pool.allocate(&other, &stream, 1000).unwrap_err());
        refused(pool.allocate(&other, &stream, 5000).unwrap_err());
        refused(pool.check(other.as_ref()).unwrap_err());
        refused(pool.trim(other.as_ref()).unwrap_err());
        pool.check(own.as_ref()).unwrap();
        drop(block);
        pool.close(own.as_ref()).unwrap();

        let pool = SymmetricPool::new(&device, "pool");
        drop(pool.allocate(&own, &stream, 1000).unwrap());
        refused(pool.close(other.as_ref()).unwrap_err());
    });
}

#[test]
fn more_than_the_address_space_is_a_typed_error() {
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let device = Host::new();
    let stream = device.stream(Default::default()).unwrap();
    let pool = SymmetricPool::new(&device, "pool");
    let error = pool.allocate(&exchange, &stream, usize::MAX).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = pool.allocate(&exchange, &stream, 1 << 60).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}
