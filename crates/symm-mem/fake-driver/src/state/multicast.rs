//! The table of a multicast object, in memory shared by all its processes: the added devices and their
//! bindings.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::machine::MOST_DEVICES;

/// Memory bound by one device. Only its process writes it, `state` last.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Binding {
    state: AtomicU32,
    pid: AtomicU32,
    fd: AtomicI32,
    serial: AtomicU64,
    at: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
}

/// Location of a binding's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Process and descriptor that hold the memory open.
    pub pid: u32,
    pub fd: i32,
    pub serial: u64,
    /// First byte within the multicast object.
    pub at: usize,
    /// First byte within the memory.
    pub offset: usize,
    pub bytes: usize,
}

#[repr(C)]
struct Table {
    added: AtomicU64,
    bindings: [Binding; MOST_DEVICES],
}

/// A mapping of the table.
#[derive(Debug)]
pub(crate) struct MulticastTable(NonNull<Table>);

// SAFETY: the table contains only atomics, and the mapping lives until drop.
unsafe impl Send for MulticastTable {}
// SAFETY: as above.
unsafe impl Sync for MulticastTable {}

impl MulticastTable {
    pub const BYTES: usize = 4096;

    pub fn map(file: BorrowedFd<'_>) -> Result<MulticastTable, Errno> {
        const { assert!(size_of::<Table>() <= MulticastTable::BYTES) };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                MulticastTable::BYTES,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(at.cast())
            .map(MulticastTable)
            .ok_or(Errno::NOMEM)
    }

    fn table(&self) -> &Table {
        // SAFETY: mapped with this size until drop; zeros are a valid table, and all access is atomic.
        unsafe { self.0.as_ref() }
    }

    /// Adds a device; false if it was added before.
    pub fn add(&self, device: i32) -> bool {
        self.table().added.fetch_or(1 << device, Ordering::AcqRel) & (1 << device) == 0
    }

    pub fn has(&self, device: i32) -> bool {
        self.table().added.load(Ordering::Acquire) & (1 << device) != 0
    }

    pub fn devices(&self) -> u32 {
        self.table().added.load(Ordering::Acquire).count_ones()
    }

    pub fn bind(&self, device: i32, to: Bound) {
        let binding = &self.table().bindings[device as usize];
        binding.pid.store(to.pid, Ordering::Relaxed);
        binding.fd.store(to.fd, Ordering::Relaxed);
        binding.serial.store(to.serial, Ordering::Relaxed);
        binding.at.store(to.at as u64, Ordering::Relaxed);
        binding.offset.store(to.offset as u64, Ordering::Relaxed);
        binding.bytes.store(to.bytes as u64, Ordering::Relaxed);
        binding.state.store(1, Ordering::Release);
    }

    pub fn unbind(&self, device: i32) {
        self.table().bindings[device as usize]
            .state
            .store(0, Ordering::Release);
    }

    /// What `device` has bound.
    pub fn bound(&self, device: i32) -> Option<Bound> {
        let binding = &self.table().bindings[device as usize];
        (binding.state.load(Ordering::Acquire) == 1).then(|| Bound {
            pid: binding.pid.load(Ordering::Relaxed),
            fd: binding.fd.load(Ordering::Relaxed),
            serial: binding.serial.load(Ordering::Relaxed),
            at: binding.at.load(Ordering::Relaxed) as usize,
            offset: binding.offset.load(Ordering::Relaxed) as usize,
            bytes: binding.bytes.load(Ordering::Relaxed) as usize,
        })
    }

    pub fn all_bound(&self) -> impl Iterator<Item = Bound> {
        (0..MOST_DEVICES as i32).filter_map(|device| self.bound(device))
    }
}

impl Drop for MulticastTable {
    fn drop(&mut self) {
        // SAFETY: mapped once, with this size; nobody keeps a reference beyond `self`.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), MulticastTable::BYTES) };
    }
}
