//! Requirements on registered memory and pools for every backend, with processes as ranks.

use std::sync::Arc;

use warpweave_symm_mem::{Backend, DevicePtr, Error, Exchange, IpcCache, Memory, SymmetricPool};

pub fn read<B: Backend>(device: &B, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let stream = device.setup_stream().unwrap();
    let mut out = vec![0; bytes];
    // SAFETY: the tests pass ranges of live registrations and blocks.
    unsafe { device.download(&stream, at, &mut out).unwrap() };
    out
}

pub fn write<B: Backend>(device: &B, at: DevicePtr, bytes: &[u8]) {
    let stream = device.setup_stream().unwrap();
    // SAFETY: the tests pass ranges of live registrations and blocks.
    unsafe { device.upload(&stream, at, bytes).unwrap() };
}

/// Each rank writes to the next rank's memory at `at`, and all read all.
pub fn exchange_data<B: Backend>(
    device: &B,
    exchange: &dyn Exchange,
    cache: &IpcCache<B>,
    at: DevicePtr,
    bytes: usize,
    stamp: u8,
) {
    let (me, world) = (exchange.rank(), exchange.world());
    let shared = cache.register(exchange, at, bytes).unwrap();
    let value = |rank: usize| vec![stamp.wrapping_add(rank as u8); bytes];
    write(device, shared.peer((me + 1) % world), &value(me));
    exchange.barrier("written").unwrap();
    for peer in 0..world {
        let part = read(device, shared.peer(peer), bytes);
        assert_eq!(
            part,
            value((peer + world - 1) % world),
            "part of rank {peer} on rank {me}"
        );
    }
    assert_eq!(read(device, at, bytes), value((me + world - 1) % world));
    exchange.barrier("read").unwrap();
}

/// Memory of `allocate` is shared, interior and in small pieces, freed, allocated again and shared again.
pub fn memory_is_shared_freed_and_shared_again<B: Backend>(
    device: &B,
    exchange: &Arc<dyn Exchange>,
) {
    let me = exchange.rank();
    let exchange = exchange.as_ref();
    let cache = IpcCache::new(device).unwrap();
    for turn in 0..10u8 {
        let large = device.allocate((4 << 20) + 512).unwrap();
        // The driver may put both into one block.
        let (small, other) = (device.allocate(700).unwrap(), device.allocate(700).unwrap());
        let inner = large.address().add(256 * (me + 1));
        exchange_data(device, exchange, &cache, inner, 1000, turn);
        exchange_data(device, exchange, &cache, small.address(), 700, turn + 50);
        exchange_data(
            device,
            exchange,
            &cache,
            other.address().add(100),
            600,
            turn + 100,
        );
        assert!(read(device, small.address(), 1) != read(device, other.address().add(100), 1));
        exchange_data(device, exchange, &cache, inner, 1000, turn + 150);
        assert_eq!(cache.len(), 3);
        // Everything is closed on all ranks before any frees.
        assert_eq!(cache.trim(exchange).unwrap(), 3);
    }
    cache.close(exchange).unwrap();
}

/// A registration that one rank holds is neither closed nor lost.
pub fn one_registration_is_released<B: Backend>(device: &B, exchange: &Arc<dyn Exchange>) {
    let exchange = exchange.as_ref();
    let memory = device.allocate(4096).unwrap();
    let cache = IpcCache::new(device).unwrap();
    let shared = cache.register(exchange, memory.address(), 4096).unwrap();
    let kept = (exchange.rank() == 0).then(|| shared.clone());
    let error = cache.release(exchange, shared).unwrap_err();
    match exchange.rank() {
        0 => assert!(matches!(error, Error::InUse { .. }), "{error}"),
        _ => assert!(
            matches!(error, Error::PeerFailed { rank: 0, .. }),
            "{error}"
        ),
    }
    drop(kept);
    let shared = cache.register(exchange, memory.address(), 4096).unwrap();
    cache.release(exchange, shared).unwrap();
    assert!(cache.is_empty());
    drop(memory);
    exchange.barrier("freed").unwrap();
    cache.close(exchange).unwrap();
}

/// Blocks of a pool: used, freed and used again.
pub fn a_pool_is_used_again_and_again<B: Backend>(device: &B, exchange: &Arc<dyn Exchange>) {
    let (me, world) = (exchange.rank(), exchange.world());
    let stream = device.stream(Default::default()).unwrap();
    let pool = SymmetricPool::new(device, "pool");
    for turn in 0..20usize {
        for bytes in [64, 10_000, 3 << 20] {
            let block = pool.allocate(exchange, &stream, bytes).unwrap();
            let stamp = |rank: usize| [(turn * 7 + rank) as u8; 64];
            write(
                device,
                block.range((me + 1) % world, bytes - 64, 64).unwrap(),
                &stamp(me),
            );
            exchange.barrier("written").unwrap();
            for peer in 0..world {
                let got = read(device, block.range(peer, bytes - 64, 64).unwrap(), 64);
                assert_eq!(got, stamp((peer + world - 1) % world));
            }
            exchange.barrier("read").unwrap();
        }
    }
    let stats = pool.stats();
    assert_eq!((stats.misses, stats.hits), (3, 57));
    pool.close(exchange.as_ref()).unwrap();
}
