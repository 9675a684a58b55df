//! An address that is in use again is not the memory that it was. A file of its own, so that no other test of the process
//! takes the address first.

#[allow(dead_code, reason = "each test file fails at its own steps")]
#[path = "support/faulty.rs"]
mod faulty;

use faulty::{Faulty, both, read, write};
use warpweave_symm_mem::{Backend, Error, IpcCache, Memory};

type Memories = <Faulty as Backend>::Memory;

/// Frees `memory` and allocates until its address is in use again.
fn reuse(device: &Faulty, memory: Memories) -> Memories {
    let (address, bytes) = (memory.address(), memory.bytes());
    drop(memory);
    let mut others = Vec::new();
    for _ in 0..1000 {
        let memory = device.allocate(bytes).unwrap();
        if memory.address() == address {
            return memory;
        }
        others.push(memory);
    }
    panic!("the address of freed memory does not come back");
}

#[test]
fn a_freed_and_reused_address_is_a_miss_on_all_ranks() {
    both(2, |device, exchange| {
        let me = exchange.rank();
        let mut memory = device.allocate(23 << 20).unwrap();
        let cache = IpcCache::new(&device).unwrap();
        let at = memory.address();
        let old = cache.register(exchange.as_ref(), at, 8).unwrap();
        write(&device, at, &[1; 8]);
        exchange.barrier("registered").unwrap();
        if me == 1 {
            memory = reuse(&device, memory);
            assert_eq!(memory.address(), at);
            let stale = old.check_current().unwrap_err();
            assert!(
                matches!(stale, Error::Stale { address, .. } if address == at.0),
                "{stale}"
            );
            assert!(stale.to_string().contains("another allocation"), "{stale}");
        } else {
            old.check_current().unwrap();
        }
        drop(old);
        exchange.barrier("reused").unwrap();
        let new = cache.register(exchange.as_ref(), at, 8).unwrap();
        write(&device, new.local(), &[me as u8 + 2; 8]);
        exchange.barrier("written").unwrap();
        let theirs = read(&device, new.peer(1 - me), 8);
        assert_eq!(theirs, [(1 - me) as u8 + 2; 8], "not what was there before");
        assert_eq!(cache.len(), 1, "the dead entry is gone");
        exchange.barrier("read").unwrap();
        drop(new);
        cache.close(exchange.as_ref()).unwrap();
        drop(memory);
    });
}
