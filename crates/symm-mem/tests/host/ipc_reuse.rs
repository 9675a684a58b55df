//! An address that is in use again is not the memory that it was. In a process of its own, so that no
//! other test takes the address first.

use crate::alone::alone;
use crate::faulty::{Faulty, both, read, write};
use warpweave_symm_mem::{Backend, Error, Exchange, IpcCache, Memory};

type Memories = <Faulty as Backend>::Memory;

/// Attempts until the address is reused: the kernel may place an allocation elsewhere, for example next to
/// the stack of a thread that has exited.
const ATTEMPTS: usize = 50;

/// Frees `memory` and allocates until its address is in use again, if it comes back.
fn reuse(device: &Faulty, memory: Memories) -> Option<Memories> {
    let (address, bytes) = (memory.address(), memory.bytes());
    drop(memory);
    let mut others = Vec::new();
    for _ in 0..100 {
        let memory = device.allocate(bytes).unwrap();
        if memory.address() == address {
            return Some(memory);
        }
        others.push(memory);
    }
    None
}

#[test]
fn a_freed_and_reused_address_is_a_miss_on_all_ranks() {
    alone(
        "ipc_reuse::a_freed_and_reused_address_is_a_miss_on_all_ranks",
        || {
            both(2, |device, exchange| {
                let reused = (0..ATTEMPTS).any(|_| is_a_miss(&device, exchange.as_ref()));
                assert!(reused, "the address of freed memory does not come back");
            });
        },
    );
}

/// Whether the address of rank 1's memory came back; if it did, it was seen to be a miss.
fn is_a_miss(device: &Faulty, exchange: &dyn Exchange) -> bool {
    let me = exchange.rank();
    let cache = IpcCache::new(device).unwrap();
    let mut memory = Some(device.allocate(23 << 20).unwrap());
    let at = memory.as_ref().unwrap().address();
    let old = cache.register(exchange, at, 8).unwrap();
    write(device, at, &[1; 8]);
    exchange.barrier("registered").unwrap();
    if me == 1 {
        memory = memory.and_then(|memory| reuse(device, memory));
    }
    let reused = exchange.all_gather("reused", &[memory.is_some() as u8]);
    if reused.unwrap()[1] == [0] {
        drop(old);
        cache.close(exchange).unwrap();
        return false;
    }
    if me == 1 {
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
    exchange.barrier("dropped").unwrap();
    let new = cache.register(exchange, at, 8).unwrap();
    write(device, new.local(), &[me as u8 + 2; 8]);
    exchange.barrier("written").unwrap();
    let theirs = read(device, new.peer(1 - me), 8);
    assert_eq!(theirs, [(1 - me) as u8 + 2; 8], "not what was there before");
    assert_eq!(cache.len(), 1, "the dead entry is gone");
    exchange.barrier("read").unwrap();
    drop(new);
    cache.close(exchange).unwrap();
    drop(memory);
    true
}
