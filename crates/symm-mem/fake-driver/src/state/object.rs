//! Physical memory: a memory file, whose name says what it is to whoever receives its descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use super::multicast::MulticastTable;

/// Files of this driver begin with it.
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

    fn word(self) -> &'static str {
        let find = Self::ALL.iter().find(|(kind, _)| *kind == self);
        find.map_or("", |(_, word)| word)
    }
}

/// What the name of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub kind: Kind,
    /// The device that it is on; of a multicast object the number of devices.
    pub device: i32,
    /// Bits of the types of handle that it may be exported as.
    pub types: u32,
    pub bytes: usize,
    /// Who made it, and which of that process's it is.
    pub pid: u32,
    pub serial: u64,
}

impl Label {
    fn name(&self) -> String {
        let kind = self.kind.word();
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
        let mut words = name.strip_suffix(" (deleted)")?.split(':');
        let kind = words.next()?;
        Some(Label {
            kind: Kind::ALL.iter().find(|(_, word)| *word == kind)?.0,
            device: words.next()?.parse().ok()?,
            types: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
            pid: words.next()?.parse().ok()?,
            serial: words.next()?.parse().ok()?,
        })
    }

    /// Of an open descriptor; `None` if it is of no file of this driver.
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
    /// Of a multicast object.
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

    /// What a peer sent. The descriptor stays the caller's.
    pub fn received(fd: BorrowedFd<'_>) -> Option<Object> {
        let label = Label::of(fd)?;
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?;
        Object::own(file, label).ok()
    }

    /// A file that the process `pid` holds open as `fd`, if it still is number `serial` of that process or of whom it
    /// has it from.
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

    /// New memory holds what was there before: a program that relies on zeros is to see that it must not.
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

    /// Stores `bytes` to the memory of every device that `table` binds, as a store through the multicast address does.
    /// False if the memory of a device does not reach that far or cannot be opened.
    pub fn store_to_all(table: &MulticastTable, at: usize, bytes: &[u8]) -> bool {
        table.all_bound().all(|to| {
            let inside = at >= to.at && at + bytes.len() <= to.at + to.bytes;
            let memory = Object::of_process(to.pid, to.fd, to.serial);
            inside && memory.is_some_and(|m| m.write(to.offset + at - to.at, bytes).is_ok())
        })
    }

    /// Says to the process that made the memory that this one has opened it.
    pub fn mark_opened(&self) {
        // The file was opened by its path, so that the lock is this opening's own.
        let _ = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared);
    }

    /// Whether another process has it open by [`Object::mark_opened`].
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

/// Descriptors of this driver's files that it gave away and that are still open here.
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
