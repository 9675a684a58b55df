//! Sharing memory between processes leaks nothing on a GPU. A separate test binary, so that no other test of
//! the process affects the counts.

#[path = "support/processes.rs"]
mod processes;

use processes::processes;
use warpweave_symm_mem::{Backend, Cuda, IpcCache, Mapping, Memory, Sharing, SymmetricPool};

#[test]
#[ignore = "needs a GPU"]
fn a_thousand_rounds_leave_nothing_behind() {
    processes("a_thousand_rounds_leave_nothing_behind", 2, |exchange| {
        let devices = Cuda::device_count().expect("a GPU");
        let device = Cuda::new(exchange.rank() % devices).unwrap();
        let stream = device.setup_stream().unwrap();
        let once = |i: usize| {
            let plain = device.allocate((1 << 20) + i).unwrap();
            let segment = device
                .create_segment(device.granularity(), Sharing::Descriptors)
                .unwrap();
            let mapping = device.map_segments(&[&segment]).unwrap();
            let cache = IpcCache::new(&device).unwrap();
            for at in [plain.address(), mapping.address()] {
                cache
                    .register(exchange.as_ref(), at.add(256), 4096)
                    .unwrap();
            }
            cache.close(exchange.as_ref()).unwrap();
            let pool = SymmetricPool::new(&device, "pool");
            pool.allocate(&exchange, &stream, 1 + i).unwrap();
            pool.close(exchange.as_ref()).unwrap();
        };
        let counts = || {
            exchange.barrier("quiet").unwrap();
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
            let free = device.free_memory().unwrap();
            exchange.barrier("counted").unwrap();
            (descriptors, free)
        };
        (0..50).for_each(once);
        let before = counts();
        (0..1000).for_each(once);
        let after = counts();
        assert_eq!(after.0, before.0, "descriptors");
        // The driver's own reserves may grow by a step or two; the rounds would be gigabytes.
        assert!(
            after.1 + (64 << 20) >= before.1,
            "device memory: {before:?} then {after:?}"
        );
    });
}
