//! Symmetric buffers: every rank allocates the same number of bytes, and every rank maps all of them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::agreement::{self, Reply, agree, gather, gather_of, require_equal};
use crate::backend::{Backend, DevicePtr, Mapping, Memory, Sharing, Support};
use crate::error::{Error, Result};
use crate::exchange::Exchange;
use crate::ipc::offer::{decode_handle, encode_handle};
use crate::ipc::{ExportedMemory, MemoryHandle};
use crate::wire::Malformed;

/// Memory of the same size on every rank of a group.
///
/// All ranks' parts are mapped contiguously: rank `r`'s part is at `contiguous() + r * stride()`, so a
/// gathered matrix can be read as one. The peer table holds the same addresses in device memory, for kernels.
///
/// Dropping a buffer unmaps it on this rank. The memory itself lives until the last rank has dropped it, so
/// it is never freed under a peer's mapping. [`SymmetricBuffer::close`], which is collective, also waits for
/// peers that still *use* the memory.
#[derive(Debug)]
pub struct SymmetricBuffer<B: Backend> {
    id: u64,
    alive: Arc<()>,
    name: String,
    rank: usize,
    world: usize,
    group: u64,
    bytes: usize,
    stride: usize,
    // Fields are dropped in this order: the mapping before the segments that it maps.
    table: B::Memory,
    mapping: B::Mapping,
    segment: B::Segment,
}

impl<B: Backend> SymmetricBuffer<B> {
    /// Allocates `bytes` on this rank and maps the parts of all ranks. Collective: all ranks pass the same
    /// `name` and `bytes`. The memory is zeroed.
    ///
    /// Where all ranks [have fabric handles](Backend::fabric_handles), memory is shared by these, and the
    /// ranks of a node may be on several hosts of an NVLink domain. Otherwise it is shared by descriptors.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the ranks are in several [nodes](Exchange::nodes), or on several hosts
    /// without fabric handles; [`Error::Disagreement`] if a rank passes another size or name;
    /// [`Error::InvalidArgument`] if `bytes` are beyond the address space; errors of the backend and the
    /// exchange. An error on one rank is an error on all.
    pub fn new(
        backend: &B,
        exchange: &Arc<dyn Exchange>,
        name: &str,
        bytes: usize,
    ) -> Result<Self> {
        let (rank, world) = (exchange.rank(), exchange.world());
        let nodes = exchange.nodes()?;
        nodes.require_one(0..world, &format!("the symmetric buffer `{name}`"))?;
        let span = tracing::info_span!("symm.alloc", name, bytes, world);
        let _entered = span.enter();
        let request = backend.fabric_handles().map(|support| Request {
            what: format!("{name}: {bytes} bytes"),
            support,
        });
        let (encode, decode) = (Request::encode, Request::decode);
        let requests = gather(exchange.as_ref(), "symm.alloc", request, encode, decode)?;
        let whats: Vec<_> = requests.iter().map(|request| &request.what).collect();
        require_equal(rank, "symm.alloc", &whats)?;
        let sharing = Request::sharing(&requests);

        let stride = bytes
            .max(1)
            .checked_next_multiple_of(backend.granularity())
            .filter(|stride| stride.checked_mul(world).is_some())
            .ok_or_else(|| Error::InvalidArgument {
                what: "bytes of symmetric memory",
                why: format!("{bytes} are beyond the address space"),
            })?;
        let made = backend
            .device()
            .shareable_memory
            .require("memory that peers can map")
            .and_then(|()| backend.create_segment(stride, sharing))
            .and_then(|segment| Ok((backend.export_segment(&segment)?, segment)));
        let ((exported, segment), handles) = gather_of(
            exchange.as_ref(),
            "symm.create",
            made,
            |made| encode_handle(made.map(|(exported, _): &(ExportedMemory, _)| &exported.handle)),
            decode_handle,
        )?;
        let fds = match sharing {
            Sharing::Fabric => (0..world).map(|_| Vec::new()).collect(),
            Sharing::Descriptors => {
                let fds: Vec<_> = exported.fd.iter().map(AsFd::as_fd).collect();
                exchange.all_gather_fds("symm.fds", &fds)?
            }
        };
        drop(exported);
        let fds = fds.into_iter().map(|mut fds| fds.pop());
        let handles: Vec<_> = handles.iter().zip(fds).collect();
        let mapped = map_all(backend, handles, &requests, rank, &segment, stride);
        let (mapping, table) = agree(exchange.as_ref(), "symm.map", mapped)?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(SymmetricBuffer {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
            name: name.into(),
            rank,
            world,
            group: exchange.group_id(),
            bytes,
            stride,
            table,
            mapping,
            segment,
        })
    }

    /// Unique among all buffers that this process has or had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Dead once the buffer is gone.
    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// The name passed at allocation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// [That](Exchange::group_id) of the ranks.
    pub fn group_id(&self) -> u64 {
        self.group
    }

    /// Bytes on each rank, as requested.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes from one rank's part to the next in the contiguous view.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// This rank's part.
    pub fn local(&self) -> DevicePtr {
        self.peer(self.rank)
    }

    /// The part of `rank`, as mapped here.
    ///
    /// # Panics
    /// If `rank` is not below [`SymmetricBuffer::world`].
    pub fn peer(&self, rank: usize) -> DevicePtr {
        assert!(
            rank < self.world,
            "rank {rank} in a group of {}",
            self.world
        );
        self.contiguous().add(rank * self.stride)
    }

    /// The parts of all ranks, as mapped here.
    pub fn addresses(&self) -> Vec<DevicePtr> {
        (0..self.world).map(|rank| self.peer(rank)).collect()
    }

    /// `bytes` at `offset` of the part of `rank`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range or the rank is out of bounds.
    pub fn range(&self, rank: usize, offset: usize, bytes: usize) -> Result<DevicePtr> {
        if rank >= self.world || offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(Error::InvalidArgument {
                what: "range of a symmetric buffer",
                why: format!(
                    "{bytes} bytes at {offset} of rank {rank} in `{}` of {} bytes on {} ranks",
                    self.name, self.bytes, self.world
                ),
            });
        }
        Ok(self.peer(rank).add(offset))
    }

    /// First address of the contiguous view of all ranks' parts.
    pub fn contiguous(&self) -> DevicePtr {
        self.mapping.address()
    }

    /// Device address of a table of `world` addresses (u64), one for each rank's part.
    pub fn peer_table(&self) -> DevicePtr {
        self.table.address()
    }

    /// This rank's physical memory, for binding to a multicast object.
    pub fn segment(&self) -> &B::Segment {
        &self.segment
    }

    /// Frees the buffer once all ranks have called this and their work on it has ended.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        exchange.barrier("symm.close")?;
        Ok(())
    }
}

/// What a rank asks for, and whether it has fabric handles.
struct Request {
    what: String,
    support: Support,
}

impl Request {
    fn encode(reply: Reply<&Self>) -> Vec<u8> {
        agreement::write(reply, |request, to| {
            to.text(&request.what);
            match &request.support {
                Support::Yes => to.byte(1),
                Support::No(why) => to.byte(0).text(why),
            };
        })
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Reply<Self>, Malformed> {
        agreement::read(bytes, |from| {
            Ok(Request {
                what: from.text()?,
                support: match from.byte()? {
                    1 => Support::Yes,
                    0 => Support::No(from.text()?),
                    _ => return Err(Malformed("neither with fabric handles nor without")),
                },
            })
        })
    }

    /// Fabric handles if all ranks have them. All ranks see the same requests.
    fn sharing(all: &[Self]) -> Sharing {
        let mut lacking = all.iter().enumerate().filter_map(|(rank, request)| {
            let Support::No(why) = &request.support else {
                return None;
            };
            Some((rank, why))
        });
        match lacking.next() {
            None => Sharing::Fabric,
            Some((rank, why)) if all.iter().any(|request| request.support.is_yes()) => {
                tracing::info!(
                    rank,
                    why,
                    "a rank lacks fabric handles: all use descriptors"
                );
                Sharing::Descriptors
            }
            Some(_) => Sharing::Descriptors,
        }
    }

    /// What it means that no descriptor of this rank, `peer`, arrived.
    fn no_descriptor(&self, peer: usize) -> Error {
        let missing = crate::ExchangeError::MissingDescriptor {
            rank: peer,
            tag: "symm.fds".into(),
            expected: 1,
            got: 0,
        };
        let fabric = match &self.support {
            Support::No(why) => format!("rank {peer} has none: {why}"),
            Support::Yes => "another rank has none".into(),
        };
        Error::Unavailable {
            what: format!("memory of rank {peer}"),
            why: format!(
                "{missing} They reach ranks of one host only; across hosts all ranks need fabric handles, \
                 and {fabric}"
            ),
        }
    }
}

fn map_all<B: Backend>(
    backend: &B,
    handles: Vec<(&MemoryHandle, Option<OwnedFd>)>,
    requests: &[Request],
    rank: usize,
    own: &B::Segment,
    stride: usize,
) -> Result<(B::Mapping, B::Memory)> {
    let mut peers = Vec::with_capacity(handles.len());
    for (peer, ((handle, fd), request)) in handles.into_iter().zip(requests).enumerate() {
        let opened = match (handle, &fd) {
            _ if peer == rank => {
                peers.push(None);
                continue;
            }
            (MemoryHandle::Descriptor, None) => Err(request.no_descriptor(peer)),
            _ => backend.import_segment(handle, fd, stride),
        };
        peers.push(Some(opened.map_err(|cause| Error::PeerMemory {
            rank: peer,
            cause: Box::new(cause),
        })?));
    }
    let segments: Vec<_> = peers.iter().map(|s| s.as_ref().unwrap_or(own)).collect();
    let mapping = backend.map_segments(&segments)?;
    let addresses: Vec<u8> = (0..segments.len())
        .flat_map(|r| mapping.address().add(r * stride).0.to_ne_bytes())
        .collect();
    let table = backend.allocate(addresses.len())?;
    let stream = backend.setup_stream()?;
    // SAFETY: the table was just allocated with this length and nothing else uses it.
    unsafe { backend.upload(&stream, table.address(), &addresses)? };
    Ok((mapping, table))
}
