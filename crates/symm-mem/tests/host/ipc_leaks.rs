//! Registrations, pools and multicast objects leak nothing. In a process of its own, so that no other test
//! affects the counts.

use crate::alone::alone;
use std::sync::Arc;

use crate::faulty::{Faulty, Step, ranks};
use warpweave_symm_mem::ipc::CacheLimits;
use warpweave_symm_mem::{
    Backend, Exchange, IpcCache, Memory, MulticastCache, SymmetricBuffer, SymmetricPool,
};

const STEPS: [Step; 7] = [
    Step::ExportMemory,
    Step::ImportMemory,
    Step::Allocate,
    Step::Upload,
    Step::CreateSegment,
    Step::MapSegments,
    Step::Bind,
];

fn once(device: &Faulty, exchange: &Arc<dyn Exchange>, turn: usize) {
    let stream = device.setup_stream().unwrap();
    let memory = device.allocate(5000).unwrap();
    let limits = CacheLimits {
        entries: 2,
        ..CacheLimits::default()
    };
    let cache = IpcCache::with_limits(device, limits).unwrap();
    let objects = MulticastCache::new(device, limits);
    let pool = SymmetricPool::new(device, "pool");
    let work = |offset: usize| {
        let at = memory.address().add(64 * offset);
        cache.register(exchange.as_ref(), at, 1000).map(drop).ok();
        pool.allocate(exchange, &stream, 1 << (10 + offset))
            .map(drop)
            .ok();
        if let Ok(buffer) = SymmetricBuffer::new(device, exchange, "b", 100) {
            objects.get(exchange, &buffer).map(drop).ok();
            buffer.close(exchange.as_ref()).unwrap();
        }
    };
    (0..3).for_each(work);
    // Now with a step that fails on one rank.
    let fails = STEPS[turn % STEPS.len()];
    device.fail((exchange.rank() == turn % 2).then_some(fails));
    work(3);
    device.fail(None);
    work(4);
    pool.trim(exchange.as_ref()).unwrap();
    pool.close(exchange.as_ref()).unwrap();
    objects.close(exchange.as_ref()).unwrap();
    if turn.is_multiple_of(2) {
        cache.close(exchange.as_ref()).unwrap();
    } else {
        // Dropped instead; the memory goes only when all ranks have.
        drop(cache);
        exchange.barrier("dropped").unwrap();
    }
}

/// Descriptors, mappings of this crate's files, and pages of address space.
fn counts() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter(|l| l.contains("memfd:")).count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split(' ').next().unwrap().parse().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (descriptors, files, pages)
}

#[test]
fn hundreds_of_rounds_with_failures_leave_nothing_behind() {
    alone(
        "ipc_leaks::hundreds_of_rounds_with_failures_leave_nothing_behind",
        || {
            ranks(2, |exchange| {
                let device = Faulty::apart();
                let run = |turns: std::ops::Range<usize>| {
                    turns.for_each(|turn| once(&device, &exchange, turn));
                };
                run(0..28);
                exchange.barrier("warm").unwrap();
                let before = counts();
                exchange.barrier("counted").unwrap();
                run(0..280);
                exchange.barrier("done").unwrap();
                let after = counts();
                exchange.barrier("counted").unwrap();
                // The other rank may be opening the file system's list of descriptors just now.
                assert!(
                    after.0 <= before.0 + 1,
                    "descriptors: {before:?} then {after:?}"
                );
                assert_eq!(after.1, before.1, "mappings of memory files");
                // The C allocator reserves 64 MiB of address space for a thread; the pools' chunks would be
                // gigabytes.
                assert!(
                    after.2 <= before.2 + (129 << 20) / 4096,
                    "address space: {before:?} then {after:?}"
                );
            });
        },
    );
}
