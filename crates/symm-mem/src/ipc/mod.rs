//! Sharing memory that the user allocated: a cache of opened allocations.
//!
//! [`IpcCache::register`] makes a range of each rank's own memory readable and writable by all ranks: of
//! `cuMemAlloc`, of a cudarc slice, of [`Backend::allocate`]. The range has the same size on every rank. It
//! returns a [`Registration`] in an [`Arc`]; using it exchanges nothing.
//!
//! # How memory is opened
//!
//! | memory | how a rank of another process opens it |
//! |---|---|
//! | `cuMemAlloc`, `cudaMalloc` | legacy CUDA IPC; the handle names the allocation, the offset is kept |
//! | CUDA virtual memory with descriptor handles | a POSIX descriptor, mapped again |
//! | CUDA virtual memory with fabric handles only | the fabric handle, if device and system support it |
//! | stream-ordered pools: cudarc slices, `cuMemAllocAsync` | not possible: an error that says what to do |
//! | host backend | its memfd |
//!
//! Ranks that are threads of one process use each other's addresses directly, once their devices have peer
//! access.
//!
//! # Guarantees of the cache
//!
//! - An entry is identified by allocations, never by addresses: freed memory whose address is in use again is
//!   a miss.
//! - An entry belongs to the group of ranks that made it. Several groups, for example tensor-parallel and
//!   data-parallel ones, may use one cache. Another group or a new process misses.
//! - All ranks decide alike: an entry is hit on all ranks or on none, evicted on all or on none, and an error
//!   on one rank is an error on all.
//! - What any rank holds is neither evicted nor closed, even beyond the [`CacheLimits`].
//! - Several registrations within one allocation open it once.
//!
//! # Obligations of the caller
//!
//! - All ranks of a group make the same calls on one cache in the same order.
//! - A rank's memory lives until all ranks have closed its registrations: [`IpcCache::release`],
//!   [`IpcCache::trim`] and [`IpcCache::close`] return after that. Freeing it earlier is undefined for CUDA
//!   IPC. The next miss evicts dead entries, which limits the damage but does not make it legal.
//! - Work on a registration has ended, or is on a stream of the backend, before the registration is dropped.
//!   Closing waits for the work on this device's streams, so do not cause a miss, which may evict, between
//!   the two halves of a handshake.

pub(crate) mod handle;
pub(crate) mod offer;
mod registration;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::agreement::{self, agree, gather};
use crate::backend::{Backend, DevicePtr, Memory};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::uniform::Groups;

pub use crate::uniform::CacheLimits;
pub use handle::{AddressSpace, AllocationIdentity, ExportedMemory, MemoryHandle};
pub use registration::Registration;

use offer::{Offer, Range};
use registration::Opened;

/// No kernel needs more alignment than this.
const LARGEST_ALIGNMENT: usize = 256;

const HISTORY: &str = "history of the IPC cache";

/// The registrations of all groups that use it. The [module](self) lists guarantees and obligations.
#[derive(Debug)]
pub struct IpcCache<B: Backend> {
    backend: B,
    space: AddressSpace,
    state: Mutex<State<B>>,
}

#[derive(Debug)]
struct State<B: Backend> {
    entries: Groups<Range, Registration<B>>,
    opened: AllOpened<B>,
}

/// Opened allocations by owning process, because each process numbers its allocations itself.
type AllOpened<B> = HashMap<(AddressSpace, AllocationIdentity), Weak<Opened<B>>>;

impl<B: Backend> IpcCache<B> {
    /// An empty cache with the default limits. Not collective, but all ranks must use the same limits.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no random numbers.
    pub fn new(backend: &B) -> Result<Self> {
        Self::with_limits(backend, CacheLimits::default())
    }

    /// As [`IpcCache::new`], with limits, which must be the same on all ranks.
    pub fn with_limits(backend: &B, limits: CacheLimits) -> Result<Self> {
        Ok(IpcCache {
            backend: backend.clone(),
            space: backend.address_space()?,
            state: Mutex::new(State {
                entries: Groups::new(limits),
                opened: HashMap::new(),
            }),
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers `bytes` at `at` of this rank's memory together with the ranges of the other ranks.
    /// Collective: all ranks pass the same `bytes`, and each its own address, which may lie anywhere in an
    /// allocation.
    ///
    /// A hit costs one small exchange. A miss evicts, opens and exchanges as needed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the ranks are in several nodes; [`Error::InvalidArgument`] if the range is
    /// empty or not within one allocation; [`Error::Disagreement`] if the ranks differ in `bytes` or in their
    /// earlier calls; [`Error::PeerMemory`] if a peer's memory cannot be opened; errors of the backend and
    /// the exchange. An error on one rank is an error on all.
    pub fn register(
        &self,
        exchange: &dyn Exchange,
        at: DevicePtr,
        bytes: usize,
    ) -> Result<Arc<Registration<B>>> {
        let nodes = exchange.nodes()?;
        nodes.require_one(0..exchange.world(), "registered memory")?;
        let mut state = self.state.lock();
        let State { entries, opened } = &mut *state;
        let rank = exchange.rank();
        let range = self.backend.identity(at).and_then(|identity| {
            let offset = identity.offset(at, bytes)?;
            Ok(Range {
                identity,
                offset,
                bytes,
            })
        });
        let mine = range.map(|range| Offer {
            sides: entries.sides(Some(&range), |_, registration| !registration.is_current()),
            space: self.space,
            range,
        });
        let offers = gather(exchange, "ipc.offer", mine, Offer::encode, Offer::decode)?;
        let sides: Vec<_> = offers.iter().map(|offer| &offer.sides).collect();
        let (table, views) = entries.of(HISTORY, rank, &sides)?;
        if let Some(peer) = offers.iter().position(|o| o.range.bytes != bytes) {
            return Err(Error::Disagreement {
                what: "bytes to register",
                rank,
                mine: bytes.to_string(),
                peer,
                theirs: offers[peer].range.bytes.to_string(),
            });
        }
        if let Some(hit) = table.hit(&views) {
            return Ok(hit);
        }

        let span = tracing::info_span!("symm.register", bytes, world = offers.len());
        let _entered = span.enter();
        drop(table.make_room(&views, bytes));
        let handles = self.exchange_handles(exchange, &offers)?;
        let made = self.open_all(opened, rank, &offers, handles);
        let registration = Arc::new(agree(exchange, "ipc.open", made)?);
        let range = offers[rank].range;
        table.insert(range, bytes, registration.clone());
        Ok(registration)
    }

    /// Exchanges what each rank needs to open the others' allocations. Nothing if all share an address space.
    fn exchange_handles(
        &self,
        exchange: &dyn Exchange,
        offers: &[Offer],
    ) -> Result<Vec<Option<Handle>>> {
        if offers.iter().all(|offer| offer.space == offers[0].space) {
            return Ok(offers.iter().map(|_| None).collect());
        }
        let at = offers[exchange.rank()].range.identity.base;
        let (mine, fd) = match self.backend.export_memory(at) {
            Ok(exported) => (Ok(exported.handle), exported.fd),
            Err(error) => (Err(error), None),
        };
        let (encode, decode) = (offer::encode_handle, offer::decode_handle);
        let handles = gather(exchange, "ipc.export", mine, encode, decode)?;
        let mut fds: Vec<Vec<OwnedFd>> = if handles.contains(&MemoryHandle::Descriptor) {
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            exchange.all_gather_fds("ipc.fds", &fds)?
        } else {
            handles.iter().map(|_| Vec::new()).collect()
        };
        let fds = fds.iter_mut().map(Vec::pop);
        Ok(handles
            .into_iter()
            .zip(fds)
            .map(|(handle, fd)| Some(Handle { handle, fd }))
            .collect())
    }

    fn open_all(
        &self,
        known: &mut AllOpened<B>,
        rank: usize,
        offers: &[Offer],
        handles: Vec<Option<Handle>>,
    ) -> Result<Registration<B>> {
        known.retain(|_, opened| opened.strong_count() > 0);
        let mut opened = Vec::with_capacity(offers.len());
        let mut addresses = Vec::with_capacity(offers.len());
        for (peer, (offer, handle)) in offers.iter().zip(handles).enumerate() {
            if peer == rank {
                addresses.push(offer.range.address());
                continue;
            }
            let theirs = (offer.space, offer.range.identity);
            let allocation = match known.get(&theirs).and_then(Weak::upgrade) {
                Some(allocation) => allocation,
                None => {
                    let memory = self
                        .open(offer, handle)
                        .map_err(|cause| Error::PeerMemory {
                            rank: peer,
                            cause: Box::new(cause),
                        })?;
                    let allocation = Arc::new(Opened { memory });
                    known.insert(theirs, Arc::downgrade(&allocation));
                    allocation
                }
            };
            addresses.push(allocation.at(offer.range.offset));
            opened.push(allocation);
        }
        let table = write_table(&self.backend, &addresses)?;
        Ok(Registration {
            backend: self.backend.clone(),
            rank,
            bytes: offers[rank].range.bytes,
            alignment: alignment(offers),
            identity: offers[rank].range.identity,
            addresses,
            table,
            _opened: opened,
        })
    }

    fn open(&self, offer: &Offer, handle: Option<Handle>) -> Result<B::PeerMemory> {
        let identity = offer.range.identity;
        match handle {
            _ if offer.space == self.space => {
                self.backend.reach_memory(identity.base, identity.bytes)
            }
            Some(Handle {
                handle: handle @ MemoryHandle::Confined(_),
                ..
            }) => Err(handle.refused()),
            Some(Handle { handle, fd }) => self.backend.import_memory(&handle, fd, identity.bytes),
            None => Err(MemoryHandle::Descriptor.refused()),
        }
    }

    /// Releases `registration` on all ranks and returns when every rank has closed it. Each rank may then
    /// free its memory, unless another entry also registers it. Collective: all ranks of the group pass the
    /// same registration.
    ///
    /// # Errors
    /// [`Error::InUse`] if it is held elsewhere too: it then stays in the cache. [`Error::Disagreement`] if
    /// the ranks pass different ones. Errors of the exchange.
    pub fn release(
        &self,
        exchange: &dyn Exchange,
        registration: Arc<Registration<B>>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let invalid = |why: &str| Error::InvalidArgument {
            what: "registration to release",
            why: why.into(),
        };
        let mine = match state.entries.place_of(&registration) {
            None => Err(invalid("it is not of this cache")),
            _ if registration.world() != exchange.world() => {
                Err(invalid("another group of ranks registered it"))
            }
            // Not counting the caller's reference and the cache's own.
            Some(place) => match Arc::strong_count(&registration) - 2 {
                0 => Ok(place),
                held => Err(Error::InUse {
                    what: "a registration",
                    held,
                    rank: exchange.rank(),
                }),
            },
        };
        drop(registration);
        let (encode, decode) = (offer::encode_place, offer::decode_place);
        let places = gather(exchange, "ipc.release", mine, encode, decode)?;
        let rank = exchange.rank();
        let (group, number) = places[rank];
        if let Some(peer) = places.iter().position(|&place| place != (group, number)) {
            let named = |(group, number)| format!("entry {number} of group {group:016x}");
            return Err(Error::Disagreement {
                what: "registration to release",
                rank,
                mine: named(places[rank]),
                peer,
                theirs: named(places[peer]),
            });
        }
        let table = state.entries.table(group);
        drop(table.map(|table| table.take(&[number])));
        exchange.barrier("ipc.released")?;
        Ok(())
    }

    /// Closes every registration of this group that no rank holds. Returns how many, once all ranks have
    /// closed them. Collective.
    pub fn trim(&self, exchange: &dyn Exchange) -> Result<usize> {
        let mut state = self.state.lock();
        let mine = state.entries.sides(None, |_, _| false);
        let all = agreement::sides(exchange, "ipc.trim", &mine)?;
        let all: Vec<_> = all.iter().collect();
        let (table, views) = state.entries.of(HISTORY, exchange.rank(), &all)?;
        let closed = table.take_idle(&views);
        let count = closed.len();
        drop(closed);
        exchange.barrier("ipc.trimmed")?;
        Ok(count)
    }

    /// Closes all registrations and returns when every rank has: each rank may then free its memory.
    /// Collective over all ranks of all groups that used the cache.
    ///
    /// # Errors
    /// [`Error::InUse`] if a rank still holds a registration. The cache is closed even so; a held
    /// registration stays usable as long as its memory lives.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        let state = self.state.into_inner();
        let idle = match state.entries.held() {
            0 => Ok(()),
            held => Err(Error::InUse {
                what: "the IPC cache",
                held,
                rank: exchange.rank(),
            }),
        };
        agree(exchange, "ipc.close", idle)?;
        drop(state);
        exchange.barrier("ipc.closed")?;
        Ok(())
    }
}

/// What a peer sent to open its allocation with.
struct Handle {
    handle: MemoryHandle,
    fd: Option<OwnedFd>,
}

fn alignment(offers: &[Offer]) -> usize {
    let each = offers.iter().map(|o| o.range.address().0.trailing_zeros());
    let least = each.min().unwrap_or(0);
    LARGEST_ALIGNMENT.min(1 << least.min(31))
}

/// A table of `addresses` (u64) in device memory.
pub(crate) fn write_table<B: Backend>(backend: &B, addresses: &[DevicePtr]) -> Result<B::Memory> {
    let bytes: Vec<u8> = addresses.iter().flat_map(|a| a.0.to_ne_bytes()).collect();
    let table = backend.allocate(bytes.len())?;
    let stream = backend.setup_stream()?;
    // SAFETY: the table was just allocated with this length and nothing else uses it.
    unsafe { backend.upload(&stream, table.address(), &bytes)? };
    Ok(table)
}
