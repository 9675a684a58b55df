//! A call: an operation on operands.

use std::ops::Deref;

use warpweave_symm_mem::multicast::MulticastBuffer;
use warpweave_symm_mem::{Backend, DType, DevicePtr, DeviceSlice, Error, Result, SymmetricBuffer};

use super::launch::{Addresses, MAX_WORLD, signature};
use super::operation::Operation;
use super::variant::Variant;

/// Memory that a collective reads or writes: local to this rank, or the same range of every rank's symmetric
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    local: DevicePtr,
    peers: Option<Addresses>,
    multicast: Option<DevicePtr>,
    /// Bytes from the start of every rank's memory, the same on all ranks; 0 where only addresses are known.
    offset: usize,
    /// The group whose ranks the addresses are of, where that is known.
    group: Option<u64>,
}

/// The offset of the parts of an output: every rank's differs, and no range has this one.
const PARTS: usize = usize::MAX;

impl Operand {
    /// Memory of this rank, which peers cannot reach.
    pub const fn local(address: DevicePtr) -> Self {
        Operand {
            local: address,
            peers: None,
            multicast: None,
            offset: 0,
            group: None,
        }
    }

    /// `bytes` at `offset` of every rank's memory in `buffer`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is out of bounds.
    pub fn symmetric<B: Backend>(
        buffer: &SymmetricBuffer<B>,
        offset: usize,
        bytes: usize,
    ) -> Result<Self> {
        let addresses = (0..buffer.world())
            .map(|rank| buffer.range(rank, offset, bytes))
            .collect::<Result<Vec<_>>>()?;
        Ok(Operand {
            offset,
            group: Some(buffer.group_id()),
            ..Self::shared(&addresses, buffer.rank())?
        })
    }

    /// The memory of a caller, of all of `world` ranks if it is symmetric.
    pub(super) fn of_slice(slice: &DeviceSlice<'_>, (rank, world): (usize, usize)) -> Result<Self> {
        if !slice.is_symmetric() {
            return Ok(Self::local(slice.own()));
        }
        let addresses = Addresses::by_rank(world, |rank| slice.address(rank));
        Ok(Operand {
            offset: slice.offset(),
            group: slice.group_id(),
            ..Self::shared(&addresses.0[..world], rank)?
        })
    }

    /// Of the memory of each of `world` ranks that rank's part of so many `bytes`.
    pub(super) fn parts(&self, (rank, world): (usize, usize), bytes: usize) -> Self {
        let parts =
            |all: Addresses| Addresses::by_rank(world, |rank| all.0[rank].add(rank * bytes));
        Operand {
            local: self.local.add(rank * bytes),
            peers: self.peers.map(parts),
            multicast: None,
            offset: PARTS,
            group: self.group,
        }
    }

    /// Memory of every rank, at these addresses as mapped here.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more than [`MAX_WORLD`] ranks, or a rank that is none of them.
    pub fn shared(addresses: &[DevicePtr], rank: usize) -> Result<Self> {
        if addresses.len() > MAX_WORLD || rank >= addresses.len() {
            return Err(Error::InvalidArgument {
                what: "addresses of an operand",
                why: format!(
                    "rank {rank} of {} ranks; {MAX_WORLD} at most",
                    addresses.len()
                ),
            });
        }
        Ok(Operand {
            local: addresses[rank],
            peers: Some(Addresses::by_rank(addresses.len(), |rank| addresses[rank])),
            multicast: None,
            offset: 0,
            group: None,
        })
    }

    /// As [`Operand::symmetric`], with the multicast address that `multicast` gives the buffer: for
    /// [`Variant::Multimem`](super::Variant::Multimem) and
    /// [`Variant::MulticastCopy`](super::Variant::MulticastCopy). The other variants use it as well.
    /// `multicast` lives until the calls on the operand have ended.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is out of bounds, or if `multicast` is that of another buffer.
    pub fn multicast<B: Backend>(
        buffer: &SymmetricBuffer<B>,
        multicast: &MulticastBuffer<B>,
        offset: usize,
        bytes: usize,
    ) -> Result<Self> {
        if multicast.buffer() != buffer.id() {
            return Err(Error::InvalidArgument {
                what: "multicast object of an operand",
                why: format!("it is not that of buffer `{}`", buffer.name()),
            });
        }
        // The host backend's multicast address is null.
        let address = match multicast.address() {
            DevicePtr::NULL => DevicePtr::NULL,
            address => address.add(offset),
        };
        Ok(Operand {
            multicast: Some(address),
            ..Self::symmetric(buffer, offset, bytes)?
        })
    }

    /// This rank's memory.
    pub const fn address(&self) -> DevicePtr {
        self.local
    }

    /// The group whose ranks the addresses are of, where that is known.
    pub(super) const fn group(&self) -> Option<u64> {
        self.group
    }

    /// Whether every rank's memory is mapped here.
    pub const fn is_symmetric(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether one store reaches every rank's memory.
    pub const fn is_multicast(&self) -> bool {
        self.multicast.is_some()
    }

    /// The address of such stores, null on the host backend.
    pub(super) const fn multicast_address(&self) -> Option<DevicePtr> {
        self.multicast
    }

    /// The memory of `rank`; null if it is not mapped here.
    pub(super) fn of(&self, rank: usize) -> DevicePtr {
        self.peers.map_or(DevicePtr::NULL, |peers| peers.0[rank])
    }
}

/// One call of a collective. All ranks give the same operation, type, count and root.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements; see [`Operation`] for what they are elements of.
    pub count: usize,
    /// The root of a broadcast; ignored otherwise.
    pub root: usize,
    /// Read. A broadcast reads only the root's.
    pub input: Operand,
    /// Written. May be the input (all-reduce, broadcast, all-to-all), or this rank's chunk of the larger of
    /// the two (all-gather, reduce-scatter).
    pub output: Operand,
}

impl Call {
    /// Bytes of `count` elements.
    pub const fn bytes(&self) -> usize {
        self.count * self.dtype.size()
    }

    /// Whether input and output are the same memory, so that results overwrite what peers may still read.
    pub fn in_place(&self) -> bool {
        self.input.local == self.output.local
    }
}

/// A call in a variant, as its launches see it: all of them carry one signature, by which ranks that make
/// another call in its place are told, or the same with another range that peers reach for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedCall {
    call: Call,
    pub signature: u32,
}

impl SignedCall {
    pub fn new(call: &Call, variant: Variant) -> Self {
        let what = (call.operation, variant, call.dtype);
        let reaches = variant.reaches(call.operation);
        let [inputs, outputs] = [(reaches[0], &call.input), (reaches[1], &call.output)]
            .map(|(is_reached, operand)| if is_reached { operand.offset } else { 0 });
        Self {
            call: *call,
            signature: signature(what, &[call.root, call.count, inputs, outputs]),
        }
    }

    /// A part of the call, with other operands and as many of their elements.
    pub fn part(&self, count: usize, input: Operand, output: Operand) -> Self {
        let call = Call {
            count,
            input,
            output,
            ..self.call
        };
        Self { call, ..*self }
    }
}

impl Deref for SignedCall {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}
