//! Identities of allocations, and the handles by which other processes open them.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::address::DevicePtr;
use crate::error::{Error, Result};
use crate::wire::{Malformed, Reader, Writer};

/// The allocation that contains an address. Within a process, two are equal only if they are the same
/// allocation: numbers are never reused, so freed memory whose address is in use again is another allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationIdentity {
    /// The process-wide number of the allocation; CUDA's buffer id.
    pub id: u64,
    /// The process-wide number of the physical memory mapped there, which can change with virtual memory. 0
    /// if the driver has none.
    pub block: u64,
    /// Its first address.
    pub base: DevicePtr,
    /// Its length.
    pub bytes: usize,
}

impl AllocationIdentity {
    /// The offset of the address `at` in the allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `bytes` is zero or the range is not within the allocation.
    pub fn offset(&self, at: DevicePtr, bytes: usize) -> Result<usize> {
        let offset = at.0.checked_sub(self.base.0).map(|o| o as usize);
        offset
            .filter(|&o| {
                bytes > 0
                    && o.checked_add(bytes)
                        .is_some_and(|end| end <= self.bytes)
            })
            .ok_or_else(|| Error::InvalidArgument {
                what: "memory to register",
                why: format!(
                    "{bytes} bytes at {:#x} are not a part of the one allocation of {} bytes at {:#x}",
                    at.0, self.bytes, self.base.0
                ),
            })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.word(self.id)
            .word(self.block)
            .word(self.base.0)
            .word(self.bytes as u64);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(AllocationIdentity {
            id: from.word()?,
            block: from.word()?,
            base: DevicePtr(from.word()?),
            bytes: from.size()?,
        })
    }
}

/// A set of ranks that can use each other's addresses as they are: the threads of one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressSpace {
    token: [u8; 16],
    process: u64,
}

impl std::fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AddressSpace(of process {})", self.process)
    }
}

impl AddressSpace {
    /// The space of this process. Random, so that no process of another container or machine has the same.
    pub fn of_process() -> Result<Self> {
        static OF_PROCESS: OnceLock<AddressSpace> = OnceLock::new();
        let token = match OF_PROCESS.get() {
            Some(token) => token.token,
            None => {
                let fresh = Self::private()?;
                OF_PROCESS.get_or_init(|| fresh).token
            }
        };
        // A forked child inherits its parent's value.
        Ok(AddressSpace {
            token,
            process: process(),
        })
    }

    /// A space that no other rank shares, so that even ranks of one process open each other's memory by
    /// handle.
    pub fn private() -> Result<Self> {
        let mut token = [0; 16];
        getrandom(&mut token, GetRandomFlags::empty())
            .map_err(|e| Error::io("drawing a random number", e))?;
        Ok(AddressSpace {
            token,
            process: process(),
        })
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.fixed(&self.token).word(self.process);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(AddressSpace {
            token: from.fixed()?,
            process: from.word()?,
        })
    }
}

fn process() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get() as u64
}

/// How another process opens an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryHandle {
    /// Legacy CUDA IPC, for memory of `cuMemAlloc`.
    Legacy([u8; 64]),
    /// A file descriptor, sent separately: a memfd, or CUDA virtual memory created with descriptor handles.
    Descriptor,
    /// CUDA virtual memory created with fabric handles.
    Fabric([u8; 64]),
    /// Not possible: only the process that made this memory can use it, for this reason.
    Confined(String),
}

impl MemoryHandle {
    pub(super) fn write(&self, to: &mut Writer) {
        match self {
            MemoryHandle::Legacy(bytes) => to.byte(0).fixed(bytes),
            MemoryHandle::Descriptor => to.byte(1),
            MemoryHandle::Fabric(bytes) => to.byte(2).fixed(bytes),
            MemoryHandle::Confined(why) => to.byte(3).text(why),
        };
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.byte()? {
            0 => MemoryHandle::Legacy(from.fixed()?),
            1 => MemoryHandle::Descriptor,
            2 => MemoryHandle::Fabric(from.fixed()?),
            3 => MemoryHandle::Confined(from.text()?),
            _ => return Err(Malformed("an unknown kind of memory handle")),
        })
    }

    /// The error of a rank in another process that cannot open memory by this handle.
    pub(crate) fn refused(&self) -> Error {
        let why = match self {
            MemoryHandle::Confined(why) => why.clone(),
            other => format!(
                "this backend does not open {}; do all ranks use the same one?",
                other.kind()
            ),
        };
        Error::Unavailable {
            what: "sharing this memory between processes".into(),
            why,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            MemoryHandle::Legacy(_) => "legacy CUDA IPC handles",
            MemoryHandle::Descriptor => "descriptors that do not arrive",
            MemoryHandle::Fabric(_) => "fabric handles",
            MemoryHandle::Confined(_) => "confined memory",
        }
    }
}

/// An allocation that other processes can open.
#[derive(Debug)]
pub struct ExportedMemory {
    /// For the peers.
    pub handle: MemoryHandle,
    /// The descriptor for a [`MemoryHandle::Descriptor`].
    pub fd: Option<OwnedFd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_lies_within_one_allocation() {
        let identity = AllocationIdentity {
            id: 1,
            block: 0,
            base: DevicePtr(1000),
            bytes: 100,
        };
        assert_eq!(identity.offset(DevicePtr(1000), 100).unwrap(), 0);
        assert_eq!(identity.offset(DevicePtr(1099), 1).unwrap(), 99);
        for (at, bytes) in [
            (999, 1),
            (1000, 101),
            (1100, 1),
            (1050, usize::MAX),
            (1050, 0),
        ] {
            let error = identity.offset(DevicePtr(at), bytes).unwrap_err();
            assert!(error.to_string().contains("0x3e8"), "{error}");
        }
    }

    #[test]
    fn threads_share_an_address_space() {
        let mine = AddressSpace::of_process().unwrap();
        let theirs = std::thread::spawn(AddressSpace::of_process).join();
        assert_eq!(mine, theirs.unwrap().unwrap());
        assert_ne!(mine, AddressSpace::private().unwrap());
    }

    #[test]
    fn handles_arrive_as_they_were_sent() {
        let handles = [
            MemoryHandle::Legacy([3; 64]),
            MemoryHandle::Descriptor,
            MemoryHandle::Fabric([4; 64]),
            MemoryHandle::Confined("of a pool".into()),
        ];
        for handle in handles {
            let mut message = Writer::default();
            handle.write(&mut message);
            let message = message.finish();
            let read = MemoryHandle::read(&mut Reader::new(&message)).unwrap();
            assert_eq!(read, handle);
            assert!(MemoryHandle::read(&mut Reader::new(&message[..message.len() - 1])).is_err());
        }
        assert!(MemoryHandle::read(&mut Reader::new(&[9])).is_err());
    }
}
