//! Physical memory: a memory file, whose name describes it to the receiver of its descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use super::multicast::MulticastTable;

/// Prefix of the names of this driver's files.
pub(crate) const PREFIX: &str = "warpweave-fake:";

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By `cuMemCreate`.
    Created,
    /// By `cuMemAlloc`.
    Allocated,
    /// The table of a multicast object.
    Multicast,
}

impl Kind {
    const ALL: [(Kind, &str); 3] = [
        (Kind::Created, "created"),
        (Kind::Allocated, "allocated"),
        (Kind::Multicast, "multicast"),
    ];

    fn name(self) -> &'static str {
        let find = Self::ALL.iter().find(|(kind, _)| *kind == self);
        find.map_or("", |(_, name)| name)
    }
}

/// The contents of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub kind: Kind,
    /// The device; for a multicast object, the number of devices.
    pub device: i32,
    /// Handle types for which it may be exported, as bits.
    pub types: u32,
    pub bytes: usize,
    /// The process that made it, and its number there.
    pub pid: u32,
    pub serial: u64,
}

impl Label {
    fn name(&self) -> String {
        let kind = self.kind.name();
        let Label {
            device,
            types,
            bytes,
            pid,
            serial,
            ..
        } = self;
        format!("{PREFIX}{kind}:{device}:{types}:{bytes}:{pid}:{serial}")
    }

    fn of_link(link: &str) -> Option<Label> {
        let name = link.strip_prefix("/memfd:")?.strip_prefix(PREFIX)?;
        let mut fields = name.strip_suffix(" (deleted)")?.split(':');
        let kind = fields.next()?;
        Some(Label {
            kind: Kind::ALL.iter().find(|(_, name)| *name == kind)?.0,
            device: fields.next()?.parse().ok()?,
            types: fields.next()?.parse().ok()?,
            bytes: fields.next()?.parse().ok()?,
            pid: fields.next()?.parse().ok()?,
            serial: fields.next()?.parse().ok()?,
        })
    }

    /// The label of an open descriptor; `None` if it is not a file of this driver.
    fn of(fd: BorrowedFd<'_>) -> Option<Label> {
        let link = rustix::fs::readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new());
        Label::of_link(link.ok()?.to_str().ok()?)
    }
}

static LIVE: AtomicUsize = AtomicUsize::new(0);
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A file that this process holds open.
#[derive(Debug)]
pub(crate) struct Object {
    file: OwnedFd,
    pub label: Label,
    /// For a multicast object.
    pub table: Option<MulticastTable>,
}

impl Object {
    pub fn create(kind: Kind, device: i32, types: u32, bytes: usize) -> Result<Object, Errno> {
        let label = Label {
            kind,
            device,
            types,
            bytes,
            pid: process::id(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let file = rustix::fs::memfd_create(label.name(), MemfdFlags::CLOEXEC)?;
        let length = match kind {
            Kind::Multicast => MulticastTable::BYTES,
            _ => bytes,
        };
        rustix::fs::ftruncate(&file, length as u64)?;
        let object = Object::own(file, label)?;
        if kind != Kind::Multicast {
            object.soil();
        }
        Ok(object)
    }

    fn own(file: OwnedFd, label: Label) -> Result<Object, Errno> {
        let table = match label.kind {
            Kind::Multicast => Some(MulticastTable::map(file.as_fd())?),
            _ => None,
        };
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Object { file, label, table })
    }

    /// An object from a peer's descriptor. The caller keeps the descriptor.
    pub fn received(fd: BorrowedFd<'_>) -> Option<Object> {
        let label = Label::of(fd)?;
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?;
        Object::own(file, label).ok()
    }

    /// The file that the process `pid` holds open as `fd`, if it still has the number `serial`.
    pub fn of_process(pid: u32, fd: i32, serial: u64) -> Option<Object> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let label = Label::of(file.as_fd()).filter(|label| label.serial == serial)?;
        Object::own(file, label).ok()
    }

    pub fn export(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.file, 0)
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The same file has the same identity in every process.
    pub fn identity(&self) -> (u32, u64) {
        (self.label.pid, self.label.serial)
    }

    /// Fills new memory with garbage, so that a program that relies on zeros fails.
    fn soil(&self) {
        let dirt = [0xa5; 64 << 10];
        let most = self.label.bytes.min(4 << 20);
        for at in (0..most).step_by(dirt.len()) {
            let _ = self.write(at, &dirt[..dirt.len().min(most - at)]);
        }
    }

    pub fn write(&self, mut at: usize, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let written = rustix::io::pwrite(&self.file, bytes, at as u64)?;
            at += written;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Stores `bytes` to the memory of every device that `table` binds, as a store through the multicast
    /// address does. False if the memory of a device does not reach that far or cannot be opened.
    pub fn store_to_all(table: &MulticastTable, at: usize, bytes: &[u8]) -> bool {
        table.all_bound().all(|to| {
            let inside = at >= to.at && at + bytes.len() <= to.at + to.bytes;
            let memory = Object::of_process(to.pid, to.fd, to.serial);
            inside && memory.is_some_and(|m| m.write(to.offset + at - to.at, bytes).is_ok())
        })
    }

    /// Marks the memory as opened by this process, visible to the process that made it.
    pub fn mark_opened(&self) {
        // The file was opened by its path, so this opening has a lock of its own.
        let _ = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared);
    }

    /// Whether another process has opened it with [`Object::mark_opened`].
    pub fn is_opened_by_others(&self) -> bool {
        let fd = self.file.as_raw_fd();
        let Some(again) = Object::of_process(process::id(), fd, self.label.serial) else {
            return false;
        };
        rustix::fs::flock(&again.file, FlockOperation::NonBlockingLockExclusive).is_err()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of exported descriptors of this driver's files that are still open in this process.
pub(crate) fn descriptors_given() -> usize {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return 0;
    };
    let links = entries
        .flatten()
        .filter_map(|e| std::fs::read_link(e.path()).ok());
    let ours = links.filter(|link| Label::of_link(&link.to_string_lossy()).is_some());
    ours.count().saturating_sub(LIVE.load(Ordering::Relaxed))
}
