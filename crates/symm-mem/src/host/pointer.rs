//! Finds the allocation that an address belongs to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::backend::DevicePtr;
use crate::error::{Error, Result};
use crate::ipc::AllocationIdentity;

/// The live allocations of this process by first address, as a driver keeps them.
static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

/// How many of them have a memory file.
static FILES: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Debug)]
struct Allocation {
    id: u64,
    bytes: usize,
    file: Option<Arc<OwnedFd>>,
}

/// A listed allocation; removed from the list on drop.
#[derive(Debug)]
pub(super) struct Listed {
    base: u64,
}

impl Listed {
    /// Lists `bytes` at `base`, which peers can open through `file` if there is one. Its number is never
    /// reused.
    pub fn new(base: DevicePtr, bytes: usize, file: Option<OwnedFd>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let allocation = Allocation {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bytes,
            file: file.map(Arc::new),
        };
        if allocation.file.is_some() {
            FILES.fetch_add(1, Ordering::Relaxed);
        }
        ALLOCATIONS.lock().insert(base.0, allocation);
        Listed { base: base.0 }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let gone = ALLOCATIONS.lock().remove(&self.base);
        if gone.is_some_and(|allocation| allocation.file.is_some()) {
            FILES.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn find(at: DevicePtr) -> Result<(u64, Allocation)> {
    let allocations = ALLOCATIONS.lock();
    let below = allocations.range(..=at.0).next_back();
    below
        .filter(|(base, allocation)| at.0 - **base < allocation.bytes as u64)
        .map(|(base, allocation)| (*base, allocation.clone()))
        .ok_or_else(|| Error::InvalidArgument {
            what: "address",
            why: format!(
                "{:#x} is not of a live allocation; on the host backend that is memory of `allocate`",
                at.0
            ),
        })
}

pub(super) fn identity(at: DevicePtr) -> Result<AllocationIdentity> {
    let (base, allocation) = find(at)?;
    Ok(AllocationIdentity {
        id: allocation.id,
        block: 0,
        base: DevicePtr(base),
        bytes: allocation.bytes,
    })
}

/// The memory file of the allocation that contains `at`, if it has one.
pub(super) fn file(at: DevicePtr) -> Result<Option<Arc<OwnedFd>>> {
    Ok(find(at)?.1.file)
}

/// Number of allocations with a memory file.
pub(super) fn files() -> usize {
    FILES.load(Ordering::Relaxed)
}
