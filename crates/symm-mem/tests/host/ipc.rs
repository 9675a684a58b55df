//! The IPC cache on the host backend, with threads as ranks: sharing their addresses, and opening each
//! other's memory by handle as ranks of different processes do.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::faulty::{Faulty, Step, all_blame, both, ranks, read, write};
use warpweave_symm_mem::ipc::CacheLimits;
use warpweave_symm_mem::{
    Backend, DevicePtr, Error, Exchange, ExchangeError, IpcCache, Memory, Registration, Result,
    ThreadExchange,
};

type Memories = <Faulty as Backend>::Memory;

#[test]
fn every_rank_reaches_every_part_wherever_it_lies() {
    both(3, |device, exchange| {
        let me = exchange.rank();
        let memory = device.allocate(10_000).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        // Each rank registers another part of its allocation.
        let at = memory.address().add(64 * (me + 1));
        let shared = cache.register(exchange.as_ref(), at, 5000).unwrap();
        assert_eq!(
            (shared.rank(), shared.world(), shared.bytes()),
            (me, 3, 5000)
        );
        assert_eq!((shared.local(), shared.addresses()[me]), (at, at));
        assert_eq!(shared.alignment(), 64);
        let next = (me + 1) % 3;
        write(
            &device,
            shared.range(next, 4999, 1).unwrap(),
            &[me as u8 + 1],
        );
        exchange.barrier("written").unwrap();
        let mine = read(&device, at.add(4999), 1)[0] as usize;
        assert_eq!(mine, (me + 2) % 3 + 1);
        for peer in 0..3 {
            let part = read(&device, shared.peer(peer), 5000);
            assert_eq!(part[4999] as usize, (peer + 2) % 3 + 1);
        }
        let table = read(&device, shared.peer_table(), 24);
        for (address, entry) in shared.addresses().iter().zip(table.chunks(8)) {
            assert_eq!(entry, address.0.to_ne_bytes());
        }
        assert!(shared.range(3, 0, 1).is_err() && shared.range(0, 4999, 2).is_err());
        exchange.barrier("read").unwrap();
        cache.release(exchange.as_ref(), shared).unwrap();
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn the_same_memory_is_a_hit_and_another_range_of_it_opens_nothing() {
    both(2, |device, exchange| {
        let memory = device.allocate(4096).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        let register = |offset, bytes| {
            let at = memory.address().add(offset);
            cache.register(exchange.as_ref(), at, bytes).unwrap()
        };
        let first = register(0, 100);
        assert!(Arc::ptr_eq(&first, &register(0, 100)));
        // From here on nothing can be opened, and nothing needs to be.
        device.fail(Some(Step::ImportMemory));
        let second = register(1000, 100);
        assert!(!Arc::ptr_eq(&first, &second));
        let peer = 1 - exchange.rank();
        assert_eq!(second.peer(peer), first.peer(peer).add(1000));
        device.fail(None);
        assert_eq!(cache.len(), 2);
        drop((first, second));
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn freed_memory_says_so() {
    let exchange = warpweave_symm_mem::ThreadExchange::group(1).remove(0);
    let device = Faulty::new();
    let memory = device.allocate(100).unwrap();
    let cache = IpcCache::new(&device).unwrap();
    let shared = cache.register(&exchange, memory.address(), 100).unwrap();
    assert!(shared.is_current());
    drop(memory);
    let error = shared.check_current().unwrap_err();
    assert!(
        error.to_string().contains("not of a live allocation"),
        "{error}"
    );
}

#[test]
fn a_miss_on_one_rank_alone_is_a_miss_on_all() {
    both(3, |device, exchange| {
        let memory = device.allocate(100).unwrap();
        let spare = device.allocate(100).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        let register = |memory: &Memories| {
            cache
                .register(exchange.as_ref(), memory.address(), 100)
                .unwrap()
        };
        let first = register(&memory);
        // Rank 1 registers other memory.
        let which = if exchange.rank() == 1 {
            &spare
        } else {
            &memory
        };
        let second = register(which);
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!(cache.len(), 2);
        // Both combinations stay known, in any order.
        assert!(Arc::ptr_eq(&first, &register(&memory)));
        assert!(Arc::ptr_eq(&second, &register(which)));
        drop((first, second));
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn eviction_goes_by_age_and_spares_what_one_rank_holds() {
    both(2, |device, exchange| {
        let memory: Vec<_> = (0..5).map(|_| device.allocate(100).unwrap()).collect();
        let limits = CacheLimits {
            entries: 2,
            ..CacheLimits::default()
        };
        let cache = IpcCache::with_limits(&device, limits).unwrap();
        let register = |i: usize| {
            let at = memory[i].address();
            cache.register(exchange.as_ref(), at, 100).unwrap()
        };
        let address = |entry: &Arc<Registration<Faulty>>| entry.local();
        drop(register(0));
        drop(register(1));
        drop(register(0));
        drop(register(2));
        // 1 was evicted, being older than the last use of 0.
        device.fail(Some(Step::ImportMemory));
        drop(register(0));
        device.fail(None);
        // Only rank 0 holds it, and no rank loses it.
        let held = register(0);
        let at = address(&held);
        let held = (exchange.rank() == 0).then_some(held);
        for i in 1..5 {
            drop(register(i));
            assert_eq!(cache.len(), 2);
        }
        device.fail(Some(Step::ImportMemory));
        assert_eq!(address(&register(0)), at);
        device.fail(None);
        drop(held);
        assert_eq!(cache.trim(exchange.as_ref()).unwrap(), 2);
        assert!(cache.is_empty());
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn eviction_goes_by_bytes() {
    both(2, |device, exchange| {
        let memory = device.allocate(1000).unwrap();
        let limits = CacheLimits {
            bytes: 1000,
            ..CacheLimits::default()
        };
        let cache = IpcCache::with_limits(&device, limits).unwrap();
        let register = |offset, bytes| {
            let at = memory.address().add(offset);
            cache.register(exchange.as_ref(), at, bytes).unwrap()
        };
        for (bytes, entries) in [(400, 1), (300, 2), (200, 3), (500, 3), (900, 1), (1000, 1)] {
            drop(register(0, bytes));
            assert_eq!(cache.len(), entries, "with {bytes} more");
            drop(register(0, bytes));
            assert_eq!(cache.len(), entries, "a hit needs no room");
        }
        cache.close(exchange.as_ref()).unwrap();
    });
}

#[test]
fn a_step_that_fails_on_one_rank_fails_on_all_and_leaves_the_cache_in_order() {
    let steps = [
        Step::Identity,
        Step::ExportMemory,
        Step::ImportMemory,
        Step::Allocate,
        Step::Upload,
    ];
    for culprit in 0..3 {
        for step in steps {
            let outcomes = ranks(3, move |exchange| {
                let device = Faulty::apart();
                let memory = device.allocate(100).unwrap();
                let cache = IpcCache::new(&device).unwrap();
                let register = || {
                    cache
                        .register(exchange.as_ref(), memory.address(), 100)
                        .map(drop)
                };
                device.fail((exchange.rank() == culprit).then_some(step));
                let outcome = register();
                device.fail(None);
                assert!(cache.is_empty());
                register().unwrap();
                assert_eq!(cache.len(), 1);
                cache.close(exchange.as_ref()).unwrap();
                outcome
            });
            all_blame(culprit, step, outcomes);
        }
    }
}

#[test]
fn what_a_rank_may_not_register_is_an_error_on_all() {
    let outcomes: Vec<Vec<Error>> = both(2, |device, exchange| {
        let memory = device.allocate(100).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        let mine = |at, bytes| {
            let (at, bytes) = match exchange.rank() {
                0 => (memory.address(), 100),
                _ => (at, bytes),
            };
            cache.register(exchange.as_ref(), at, bytes).unwrap_err()
        };
        let errors = vec![
            mine(memory.address(), 101),
            mine(memory.address(), 0),
            mine(DevicePtr(8), 100),
            mine(memory.address(), 99),
        ];
        cache
            .register(exchange.as_ref(), memory.address(), 100)
            .unwrap();
        cache.close(exchange.as_ref()).unwrap();
        errors
    });
    for (i, errors) in outcomes.into_iter().enumerate() {
        let rank = i % 2;
        for (case, error) in errors.into_iter().enumerate() {
            let right = match (case, rank) {
                (3, _) => matches!(&error, Error::Disagreement { peer, .. } if *peer == 1 - rank),
                (_, 0) => matches!(&error, Error::PeerFailed { rank: 1, .. }),
                _ => matches!(&error, Error::InvalidArgument { .. }),
            };
            assert!(right, "case {case} on rank {rank}: {error}");
        }
    }
}

#[test]
fn what_a_rank_holds_is_not_closed() {
    both(2, |device, exchange| {
        let memory = device.allocate(100).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        let shared = cache
            .register(exchange.as_ref(), memory.address(), 100)
            .unwrap();
        let held = (exchange.rank() == 1).then(|| shared.clone());
        let in_use = |outcome: Result<()>| {
            let error = outcome.unwrap_err();
            match exchange.rank() {
                1 => assert!(
                    matches!(
                        error,
                        Error::InUse {
                            held: 1,
                            rank: 1,
                            ..
                        }
                    ),
                    "{error}"
                ),
                _ => assert!(
                    matches!(error, Error::PeerFailed { rank: 1, .. }),
                    "{error}"
                ),
            }
        };
        in_use(cache.release(exchange.as_ref(), shared));
        assert_eq!(
            (cache.len(), cache.trim(exchange.as_ref()).unwrap()),
            (1, 0)
        );
        let again = cache
            .register(exchange.as_ref(), memory.address(), 100)
            .unwrap();
        if let Some(held) = &held {
            assert!(Arc::ptr_eq(held, &again));
        }
        drop(again);
        in_use(cache.close(exchange.as_ref()));
        if let Some(held) = held {
            write(&device, held.peer(0), &[9]);
        }
        exchange.barrier("written").unwrap();
        if exchange.rank() == 0 {
            assert_eq!(read(&device, memory.address(), 1), [9]);
        }
        exchange.barrier("end").unwrap();
    });
}

#[test]
fn an_entry_of_other_groups_is_a_miss() {
    for make in [Faulty::new, Faulty::apart] {
        let mut calls: [Vec<(ThreadExchange, Vec<u8>)>; 4] = Default::default();
        for _ in 0..2 {
            // The third meets ranks whose one entry has the same number, place and range.
            for group in [[0, 1], [2, 3], [0, 2], [1, 0], [3, 2]] {
                for (exchange, rank) in ThreadExchange::group(2).into_iter().zip(group) {
                    calls[usize::from(rank)].push((exchange, group.to_vec()));
                }
            }
        }
        std::thread::scope(|scope| {
            for (rank, calls) in calls.into_iter().enumerate() {
                scope.spawn(move || {
                    let device = make();
                    let memory = device.allocate(100).unwrap();
                    write(&device, memory.address(), &[rank as u8]);
                    let cache = IpcCache::new(&device).unwrap();
                    for (exchange, group) in calls {
                        let shared = cache.register(&exchange, memory.address(), 100).unwrap();
                        let parts = shared.addresses().iter();
                        let seen: Vec<u8> = parts.map(|&at| read(&device, at, 1)[0]).collect();
                        assert_eq!(seen, group, "on rank {rank}");
                        exchange.barrier("seen").unwrap();
                    }
                    let groups = if rank == 0 || rank == 2 { 3 } else { 2 };
                    assert_eq!(cache.len(), groups, "an entry for each group");
                });
            }
        });
    }
}

/// An exchange that carries what this rank gives in `tag`, and then fails here.
struct FailsAt<'a>(&'a dyn Exchange, &'static str);

impl Exchange for FailsAt<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn world(&self) -> usize {
        self.0.world()
    }
    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let gathered = self.0.all_gather(tag, bytes)?;
        match tag == self.1 {
            false => Ok(gathered),
            true => Err(ExchangeError::PeerLost {
                rank: 0,
                tag: tag.into(),
                cause: "on purpose".into(),
            }),
        }
    }
    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        self.0.all_gather_fds(tag, fds)
    }
}

#[test]
fn ranks_whose_histories_came_apart_are_told() {
    let errors = ranks(2, |exchange| {
        let device = Faulty::new();
        let memory = device.allocate(100).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        // The last step succeeds on rank 0 only, which keeps the entry.
        let step = if exchange.rank() == 1 { "ipc.open" } else { "" };
        let failing = FailsAt(exchange.as_ref(), step);
        let first = cache.register(&failing, memory.address(), 100);
        assert_eq!(first.is_ok(), exchange.rank() == 0);
        cache
            .register(exchange.as_ref(), memory.address(), 100)
            .unwrap_err()
    });
    for (rank, error) in errors.iter().enumerate() {
        assert!(
            matches!(error, Error::Disagreement { peer, .. } if *peer == 1 - rank),
            "{error}"
        );
    }
}

#[test]
fn random_histories_stay_the_same_on_all_ranks() {
    for seed in 1..6u64 {
        let lens = both(3, move |device, exchange| {
            let memory: Vec<_> = (0..6).map(|_| device.allocate(4096).unwrap()).collect();
            let limits = CacheLimits {
                entries: 4,
                bytes: 3000,
            };
            let cache = IpcCache::with_limits(&device, limits).unwrap();
            let mut held = Vec::new();
            // The same on all ranks, except where a rank deviates on purpose.
            let mut state = seed;
            let mut next = |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                (state >> 33) % below
            };
            let mut lens = Vec::new();
            for step in 0..150u64 {
                let (which, offset, bytes) = (next(3), next(3) * 64, 100 + next(4) * 200);
                let (odd_rank, keep) = (next(6), next(3));
                let own_way = u64::from(odd_rank == exchange.rank() as u64) * 3;
                let at = memory[(which + own_way) as usize]
                    .address()
                    .add(offset as usize);
                let shared = cache
                    .register(exchange.as_ref(), at, bytes as usize)
                    .unwrap();
                assert_eq!(shared.local(), at);
                let stamp = (step % 251) as u8;
                write(&device, at, &[stamp]);
                exchange.barrier("written").unwrap();
                for peer in 0..3 {
                    assert_eq!(read(&device, shared.peer(peer), 1), [stamp], "step {step}");
                }
                exchange.barrier("read").unwrap();
                // What is held differs between ranks.
                if (keep + exchange.rank() as u64).is_multiple_of(3) {
                    held.push(shared);
                }
                if held.len() > 2 {
                    held.remove(0);
                }
                lens.push(cache.len());
            }
            held.clear();
            cache.close(exchange.as_ref()).unwrap();
            lens
        });
        for group in lens.chunks(3) {
            assert!(group.iter().all(|l| *l == group[0]), "seed {seed}");
        }
    }
}
