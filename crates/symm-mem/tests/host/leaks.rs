//! Nothing leaks. In a process of its own, so that no other test affects the counts.

use crate::alone::alone;
use std::sync::Arc;

use warpweave_symm_mem::{Backend, Exchange, Host, SymmetricBuffer, ThreadExchange};

#[test]
fn ten_thousand_allocations_leave_nothing_behind() {
    alone(
        "leaks::ten_thousand_allocations_leave_nothing_behind",
        || {
            let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let maps = || {
                std::fs::read_to_string("/proc/self/maps")
                    .unwrap()
                    .lines()
                    .count()
            };
            // Pages of address space and pages in memory.
            let pages = || -> (usize, usize) {
                let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
                let mut fields = statm.split(' ').map(|f| f.parse().unwrap());
                (fields.next().unwrap(), fields.next().unwrap())
            };
            let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
            let device = Host::new();
            let once = |i: usize| {
                let buffer =
                    SymmetricBuffer::new(&device, &exchange, "b", 1 + i % 100_000).unwrap();
                drop(device.allocate(1 + i).unwrap());
                buffer.close(exchange.as_ref()).unwrap();
            };
            (0..100).for_each(once);
            let before = (count(), maps(), pages());
            (0..10_000).for_each(once);
            let after = (count(), maps(), pages());
            assert_eq!(after.0, before.0, "descriptors");
            assert!(
                after.1 <= before.1 + 8,
                "mappings: {before:?} then {after:?}"
            );
            // The C allocator reserves 64 MiB of address space for each allocating thread; the 10⁴ buffers
            // would be 500 MiB.
            let (space, memory) = after.2;
            assert!(
                space <= before.2.0 + (65 << 20) / 4096,
                "address space: {before:?} then {after:?}"
            );
            assert!(
                memory <= before.2.1 + (4 << 20) / 4096,
                "memory: {before:?} then {after:?}"
            );
        },
    );
}
