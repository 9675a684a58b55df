//! Nothing leaks on a GPU. A separate test binary, so that no other test of the process affects the counts.

use std::sync::Arc;
use std::time::Instant;

use warpweave_symm_mem::{Backend, Cuda, Exchange, SymmetricBuffer, ThreadExchange};

#[test]
#[ignore = "needs a GPU"]
fn ten_thousand_allocations_leave_nothing_behind() {
    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let device = Cuda::new(0).unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Pages of address space and pages in memory.
    let pages = || -> (usize, usize) {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let mut fields = statm.split(' ').map(|f| f.parse().unwrap());
        (fields.next().unwrap(), fields.next().unwrap())
    };
    let once = |i: usize| {
        let buffer = SymmetricBuffer::new(&device, &exchange, "b", 1 + i % 100_000).unwrap();
        drop(device.allocate(1 + i).unwrap());
        buffer.close(exchange.as_ref()).unwrap();
    };
    (0..100).for_each(once);
    let before = (descriptors(), device.free_memory().unwrap(), pages());
    let start = Instant::now();
    (0..10_000).for_each(once);
    println!("{:?} an allocation", start.elapsed() / 10_000);
    let after = (descriptors(), device.free_memory().unwrap(), pages());
    assert_eq!(after.0, before.0, "descriptors");
    assert!(
        after.1 + (32 << 20) >= before.1,
        "device memory: {before:?} then {after:?}"
    );
    // The driver's own reserves may grow by a step or two; the 10⁴ buffers would be 20 GiB.
    let (space, memory) = after.2;
    assert!(
        space <= before.2.0 + (1 << 30) / 4096,
        "address space: {before:?} then {after:?}"
    );
    assert!(
        memory <= before.2.1 + (64 << 20) / 4096,
        "memory: {before:?} then {after:?}"
    );
}
